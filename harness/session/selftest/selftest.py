"""The self-test of the detector: it must detect every injected bug, and report nothing on the engine without one.

It must also let no requirement conform on a model whose answers could not show a bug.

It runs before everything else, takes less than two seconds, and uses the same runner, reference cache and checkers as
the run. If it fails, no verdict of the run can be trusted.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from coldproof.adapters.protocol.endpoints import IMPOSSIBLE_PRIORITY, Endpoint
from coldproof.adapters.protocol.requests import Abort, ResponseOptions
from coldproof.harness.execution.calibration.sensitivity import measure_sensitivity
from coldproof.harness.execution.models.lora import AdapterFiles, digest_of
from coldproof.harness.execution.models.versions import Versions, with_digests
from coldproof.harness.execution.oracles.engine import EngineOracle
from coldproof.harness.execution.runner.runner import WorkloadRun
from coldproof.harness.judgement.evidence.cache import Reuse
from coldproof.harness.judgement.finding import Rule
from coldproof.harness.judgement.judge import judge
from coldproof.harness.judgement.requirement import Requirement
from coldproof.harness.judgement.trial import Trial
from coldproof.harness.judgement.verdict import verdict_without_case
from coldproof.harness.schema.cold_answers import ColdAnswers
from coldproof.harness.schema.divergences import Rate
from coldproof.harness.schema.results import SelfTestRow
from coldproof.harness.schema.verdict import Verdict
from coldproof.harness.session.selftest.scripted_engine import (
    BLOCK,
    START,
    BlindModel,
    ClosedFormOracle,
    InjectedBug,
    ScriptedEngine,
)
from coldproof.harness.workload.steps import (
    START_WEIGHTS,
    Burst,
    Idle,
    Prompt,
    Request,
    Reset,
    Route,
    Segment,
    SetAdapter,
    Step,
    UpdateWeights,
    Workload,
)

STEM = Segment("stem", 5 * BLOCK)


def self_test() -> list[SelfTestRow]:
    """Return one row for each injected bug and one for the engine without a bug."""
    with tempfile.TemporaryDirectory(prefix="coldproof-selftest-") as folder:
        contents = {name: write_content(Path(folder) / name, name) for name in ("A", "B")}
        versions = write_versions(Path(folder))
        return [
            *(examine(bug, contents, versions, Path(folder) / f"run{i}") for i, bug in enumerate(InjectedBug)),
            *(examine_model(model, contents, Path(folder) / model.name) for model in BlindModel),
        ]


def examine(bug: InjectedBug, contents: dict[str, AdapterFiles], versions: Versions, folder: Path) -> SelfTestRow:
    """Run the script against one engine, and return whether the detector was right."""
    nonce = f"selftest{bug.name}"
    history = WorkloadRun(
        ScriptedEngine(bug), script(), nonce, contents, folder, settle_seconds=0.0, versions=versions
    ).history()
    findings = judge(history, ClosedFormOracle(), Rule(exact=True), exclusive=True).findings
    right = bool(findings) != (bug is InjectedBug.CLEAN)
    return SelfTestRow(planted=bug.value, caught=right, said=findings[0].sentence if findings else "no finding")


def examine_model(model: BlindModel | None, contents: dict[str, AdapterFiles], folder: Path) -> SelfTestRow:
    """Repeat a prompt on an engine without any bug, and return whether a model that shows nothing does not conform."""
    cold = EngineOracle("cold-engine", ScriptedEngine(caching=False, model=model), list(contents.values()), memo={})
    measured = measure_sensitivity(cold, [None], BLOCK, Rule(exact=True))
    rule = Rule(exact=True, cold=ColdAnswers(rate=Rate(1, 0), sensitivity=measured))
    workload = Workload((*request_burst(None), *request_burst(None)))
    history = WorkloadRun(
        ScriptedEngine(model=model), workload, "selftest", contents, folder, settle_seconds=0.0
    ).history()
    trial = Trial(Requirement("REUSE-1", "", (), (Reuse.REPEAT_HITS,)), "self-test", "", "")
    trial.add(judge(history, cold, rule, exclusive=True))
    verdict, reason = verdict_without_case(trial, None, rule)
    right = (verdict is Verdict.CONFORMS) is (model is None)
    return SelfTestRow(planted=model.value if model is not None else "none", caught=right, said=f"{verdict}: {reason}")


def script() -> Workload:
    """Return a workload that triggers every bug, with reloads, changed tokens, salts, an abort and a reset."""
    near = Segment(STEM.name, STEM.length, changed=STEM.length - 5)  # together with the nonce, a block's last token
    cut = Segment("cut", STEM.length)
    steps: list[Step] = [
        SetAdapter(name="tenant", content="A", path="p"),
        *request_burst("tenant"),
        *request_burst("tenant"),
        SetAdapter(name="tenant", content="B", path="p", route=Route.IN_PLACE),
        *request_burst("tenant"),
        SetAdapter(name="tenant", content="A", path="q", route=Route.UNLOAD_LOAD),
        *request_burst("tenant"),
        *request_burst(None),
        *request_burst(None, salt="red"),
        *request_burst(None, salt="Red"),
        *request_burst(None, near),
        *request_burst(None, cut, abort=Abort(after_tokens=2)),
        *request_burst(None, cut),
        *request_burst(None, options=ResponseOptions(prompt_logprobs=True)),
        *request_burst(None, chat=True),
        *request_burst(None, chat=True, salt="red", endpoint=Endpoint.MESSAGES),
        *request_burst(None, chat=True, priority=IMPOSSIBLE_PRIORITY),
        *request_burst(None, chat=True, priority=IMPOSSIBLE_PRIORITY, endpoint=Endpoint.MESSAGES),
        Idle(0),
        Reset(),
        *request_burst(None),
        UpdateWeights(version="A"),
    ]
    return Workload(tuple(steps))


def request_burst(adapter: str | None, stem: Segment = STEM, **more: Any) -> tuple[Burst]:
    """Return one request that ends with uncached tokens, so that a hit is followed by computed tokens."""
    prompt = Prompt((stem, Segment("tail", 3)))
    return (Burst(requests=(Request(prompt=prompt, adapter=adapter, **more),)),)


def write_content(folder: Path, text: str) -> AdapterFiles:
    """Write adapter files that differ only in `text`. The scripted engine reads no weights."""
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(text.encode())
    return AdapterFiles(folder, digest_of(folder), {})


def write_versions(folder: Path) -> Versions:
    """Write the weights of the start and another version of a few bytes."""
    folders = {name: folder / f"weights-{name}" for name in (START_WEIGHTS, "A")}
    for name, place in folders.items():
        place.mkdir(parents=True)
        (place / "model.safetensors").write_bytes(START if name == START_WEIGHTS else name.encode())
    return with_digests(folders.pop(START_WEIGHTS), folders)
