"""Judge the recorded calls of an RL loop: is anything that other weights computed used after an update?

The calls become a workload: the same prompts as far as they share a prefix, the same updates, resets and pauses, in the
same order. It runs on vLLM's engine core in process with the fingerprint worker, whose answers show every wrong block.
Then it runs again without each call that could make it safe. Everything after an update is compared with cold answers.

    python -m benchmarks.rl_loop.judge_calls benchmarks/rl_loop/trl-1.16.0-grpo.json
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import parse_qs

import msgspec

from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.protocol.weights import PauseMode, WeightPolicy
from coldproof.harness.execution.models.versions import Versions
from coldproof.harness.execution.runner.runner import WorkloadRun
from coldproof.harness.features.weights.evidence import Weights
from coldproof.harness.history.records import common_prefix
from coldproof.harness.judgement.finding import EXACT
from coldproof.harness.judgement.judge import Judgement, judge
from coldproof.harness.judgement.oracle import Answer, Oracle, OracleError, Question
from coldproof.harness.workload.steps import (
    START_WEIGHTS,
    Burst,
    Change,
    Meanwhile,
    Pause,
    Prompt,
    Request,
    Reset,
    Resume,
    Segment,
    UpdateWeights,
    Workload,
)
from coldproof.harness.workload.tokens import new_nonce

GENERATE, UPDATE, RESET, PAUSE, RESUME = (
    "/v1/completions",
    "/update_weights",
    "/reset_prefix_cache",
    "/pause",
    "/resume",
)


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded call; trl_loop.py writes them. `left_out`: the server did not get it."""

    path: str
    began: float
    ended: float
    query: str = ""
    prompts: tuple[tuple[int, ...], ...] = ()
    answers: int = 1
    max_tokens: int = 0
    left_out: bool = False


def read_calls(path: Path) -> list[Call]:
    """Return the calls of a file that the server got."""
    return [call for call in msgspec.json.decode(path.read_bytes(), type=list[Call]) if not call.left_out]


def workload_of(calls: Sequence[Call], versions: Sequence[str]) -> Workload:
    """Return the workload of these calls. `versions`: the names of the weights that its updates load in turn."""
    prompts = segmented(list(dict.fromkeys(prompt for call in calls for prompt in call.prompts)))
    names = (versions[number % len(versions)] for number in range(len(calls)))
    steps: list[Burst | Change] = []
    end = 0.0  # of the generation that is in flight
    for call in sorted(calls, key=lambda one: one.began):
        in_flight = call.began < end
        if call.prompts:
            requests = tuple(requests_of(call, prompts))
            burst = steps.pop() if in_flight else Burst(requests=())
            assert isinstance(burst, Burst)
            steps.append(msgspec.structs.replace(burst, requests=burst.requests + requests))
            end = max(end, call.ended)
            continue
        change = change_of(call, names)
        if change is not None and in_flight:
            burst = steps.pop()
            assert isinstance(burst, Burst)
            steps.append(msgspec.structs.replace(burst, meanwhile=with_change(burst.meanwhile, change)))
        elif change is not None:
            steps.append(change)
    return Workload(tuple(steps))


def segmented(prompts: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], Prompt]:
    """Return prompts of segments that share as many first tokens as all of these do."""
    shared = min((common_prefix(prompts[0], other) for other in prompts[1:]), default=0)
    stem = (Segment("shared", shared),) if shared else ()
    return {
        tokens: Prompt((*stem, Segment(f"prompt {number}", len(tokens) - shared)))
        for number, tokens in enumerate(prompts)
    }


def requests_of(call: Call, prompts: dict[tuple[int, ...], Prompt]) -> Iterator[Request]:
    """Yield the requests of a generation: one for each answer, because sampled answers cannot be compared."""
    for prompt in call.prompts:
        for _ in range(call.answers):
            yield Request(prompt=prompts[prompt], max_tokens=call.max_tokens)


def change_of(call: Call, versions: Iterator[str]) -> Change | None:
    """Return the change that a call makes; None if it makes none. The defaults of a pause are vLLM's."""
    options = {name: values[-1] for name, values in parse_qs(call.query).items()}
    match call.path:
        case "/update_weights":
            return UpdateWeights(version=next(versions))
        case "/reset_prefix_cache":
            return Reset()
        case "/pause":
            clear = options.get("clear_cache", "true") == "true"
            return Pause(mode=PauseMode(options.get("mode", "abort")), clear=clear)
        case "/resume":
            return Resume()
    return None


def with_change(meanwhile: Meanwhile | None, change: Change) -> Meanwhile:
    """Return the changes during a burst with one more."""
    if meanwhile is None:
        return Meanwhile(change=change, after_tokens=1)
    return msgspec.structs.replace(meanwhile, then=(*meanwhile.then, change))


def variants(calls: Sequence[Call]) -> dict[str, list[Call]]:
    """Return the recorded calls, and the same without each kind of call that could make them safe."""
    found = {"as recorded": list(calls)}
    paths = {call.path for call in calls}
    if RESET in paths:
        found[f"without {RESET}"] = [call for call in calls if call.path != RESET]
    if PAUSE in paths:
        kept = [c if c.path != PAUSE else msgspec.structs.replace(c, query=keeping(c.query)) for c in calls]
        found[f"{PAUSE} with clear_cache=false"] = kept
        found[f"without {PAUSE} and {RESUME}"] = [call for call in calls if call.path not in (PAUSE, RESUME)]
    return found


def workloads(calls: Sequence[Call], versions: Sequence[str]) -> dict[str, Workload]:
    """Return the workload of each variant, and the recorded one while another client has a request in flight."""
    found = {name: workload_of(kept, versions) for name, kept in variants(calls).items()}
    if Reset() in found["as recorded"].steps:
        found["as recorded, with another client's request in flight"] = beside_another(found["as recorded"])
    return found


def beside_another(workload: Workload) -> Workload:
    """Return a workload in which all changes between two bursts are made while another request is in flight."""
    steps: list[Burst | Change] = []
    for quiet, group in itertools.groupby(workload.steps, lambda step: not isinstance(step, Burst)):
        if not quiet:
            steps += group
            continue
        first, *then = group
        other = Request(prompt=Prompt((Segment("another client", 40),)), max_tokens=64)
        steps.append(Burst(requests=(other,), meanwhile=Meanwhile(change=first, after_tokens=1, then=tuple(then))))
    return Workload(tuple(steps))


def keeping(query: str) -> str:
    """Return the query of a pause that does not clear the cache."""
    return f"{query}&clear_cache=false".removeprefix("&")


def judged(engine: CheckedEngine, oracle: Oracle, workload: Workload, versions: Versions, folder: Path) -> Judgement:
    """Run a workload and judge it as if every update had to leave nothing of other weights."""
    policy = WeightPolicy.INVALIDATES
    run = WorkloadRun(engine, workload, new_nonce([]), {}, folder, versions=versions, policy=policy)
    return judge(run.history(), oracle, EXACT, exclusive=True)


def summary(judgement: Judgement) -> str:
    """Return what a judgement found, as one line."""
    facts = judgement.evidence
    wrong = {found.request for found in judgement.findings}
    lines = [f"{facts[Weights.AFTER_UPDATE]:.0f} requests could hit blocks of other weights"]
    if facts[Weights.IN_FLIGHT]:
        lines.append(f"{facts[Weights.IN_FLIGHT]:.0f} were in flight over an update")
    lines.append(f"{len(wrong)} wrong" if wrong else "none wrong")
    return ", ".join(lines) + (f". {judgement.worst().sentence}" if wrong else "")


class NoEngine(Oracle):
    """Stands for the cold engine that the closed form needs for other requests than these."""

    name = "none"

    def ask(self, question: Question) -> Answer:
        """Raise OracleError."""
        raise OracleError(f"no closed form for {question}")


def main(files: Sequence[str]) -> None:
    """Judge each file, and print a line for each variant."""
    from coldproof.adapters.vllm import server
    from coldproof.adapters.vllm.fingerprint.topology import FULL_ATTENTION
    from coldproof.adapters.vllm.inproc import engine as vllm_inproc
    from coldproof.harness.execution.models.cache_folder import generated_files
    from coldproof.harness.execution.models.lora import tiny_model
    from coldproof.harness.execution.models.versions import generated_versions
    from coldproof.harness.execution.oracles.closed_form import ClosedForm

    model = tiny_model(generated_files())
    versions = generated_versions(model, generated_files(), sliding_window=False)
    names = [*(name for name in versions if name != START_WEIGHTS), START_WEIGHTS]  # no step returns to an earlier one
    with tempfile.TemporaryDirectory() as folder:
        options = server.VllmOptions(model=str(model), log=Path(folder) / "log", topology=FULL_ATTENTION)
        engine = CheckedEngine(vllm_inproc.start(options))
        oracle = ClosedForm(NoEngine())
        for file in files:
            for name, workload in workloads(read_calls(Path(file)), names).items():
                judgement = judged(engine, oracle, workload, versions, Path(folder) / "run")
                sys.stdout.write(f"{Path(file).name}, {name}: {summary(judgement)}\n")
        engine.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
