"""Field reports as literal workloads, on a real vLLM that is stepped in this process.

They conform on 0.32.0. Each was once a fault of some engine, and `test_every_requirement_can_fail` injects them
again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from coldproof.adapters.vllm.inproc import engine as vllm_inproc
from coldproof.adapters.vllm.inproc.engine import InprocEngine
from coldproof.adapters.vllm.server import VllmOptions
from coldproof.harness.execution.models.cache_folder import generated_files
from coldproof.harness.execution.models.lora import tiny_model
from coldproof.harness.execution.oracles.engine import EngineOracle
from coldproof.harness.execution.runner.runner import WorkloadRun
from coldproof.harness.history.records import History
from coldproof.harness.judgement.evidence.cache import Pressure, Reuse
from coldproof.harness.judgement.finding import Rule
from coldproof.harness.judgement.judge import Judgement, judge
from coldproof.harness.workload.steps import Burst, Prompt, Request, Segment, Workload

CACHED = generated_files()
BLOCK = 32
pytestmark = pytest.mark.engine


class Field:
    """A warm engine with a pool of the reported size, and the cold engine."""

    def __init__(self, folder: Path, cold: InprocEngine, *flags: str) -> None:
        self.folder = folder
        self.engine = start(folder, *flags)
        self.oracle = EngineOracle("cold-engine", cold, [], memo={})

    def run(self, workload: Workload, nonce: str = "field") -> History:
        """Run the workload on an empty cache and return its history."""
        assert self.engine.reset_cache()
        return WorkloadRun(self.engine, workload, nonce, {}, self.folder).history()

    def judged(self, workload: Workload) -> Judgement:
        """Run the workload and return its judgement."""
        return judge(self.run(workload), self.oracle, Rule(exact=True), exclusive=True)


def start(folder: Path, *flags: str, caching: bool = True) -> InprocEngine:
    """Return an engine with the tiny model."""
    log = folder / "engine.log"
    return vllm_inproc.start(
        VllmOptions(model=str(tiny_model(CACHED)), prefix_caching=caching, arguments=flags, log=log)
    )


@pytest.fixture(scope="module")
def cold(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InprocEngine]:
    """Yield an engine without prefix caching and with room for everything."""
    engine = start(tmp_path_factory.mktemp("cold"), "--num-gpu-blocks-override", "200", caching=False)
    yield engine
    engine.stop()


@pytest.fixture
def field(request: pytest.FixtureRequest, cold: InprocEngine, tmp_path: Path) -> Iterator[Field]:
    """Yield an engine with the parametrized flags."""
    opened = Field(tmp_path, cold, *request.param)
    yield opened
    opened.engine.stop()


def blocks(count: int) -> list[str]:
    """Return the flags for a pool of `count` usable blocks."""
    return ["--num-gpu-blocks-override", str(count + 1), "--max-model-len", str(count * BLOCK)]


def alone(*segments: tuple[str, int], tokens: int = 8) -> Burst:
    """Return a burst of one request."""
    return Burst(requests=(Request(prompt=Prompt(tuple(Segment(*s) for s in segments)), max_tokens=tokens),))


@pytest.mark.parametrize("field", [blocks(16)], indirect=True)
@pytest.mark.nightly
def test_forty_identical_long_prompts_in_a_tight_pool(field: Field) -> None:
    """V0 stalled after the first of many identical prompts. Here all finish side by side and share one set of
    blocks.
    """
    request = Request(prompt=Prompt((Segment("long", 8 * BLOCK + 4),)), max_tokens=40)
    judgement = field.judged(Workload((Burst(requests=(request,) * 40),)))
    assert judgement.findings == ()
    assert all(outcome.answered for outcome in judgement.history.outcomes)
    looks = judgement.history.steps[0].queue
    assert max(look.running or 0 for look in looks if look.waiting) > 1
    assert judgement.evidence[Pressure.IDENTICAL] == 40


# Two requests of two blocks + 2, each answered with two blocks + 3, in a pool of seven blocks (LMCache#1969).
CONNECTOR_RECIPE = Workload(
    (
        Burst(
            requests=tuple(
                Request(prompt=Prompt((Segment(f"request {i}", 2 * BLOCK + 2 - 4),)), max_tokens=2 * BLOCK + 3)
                for i in range(2)
            )
        ),
    )
)


@pytest.mark.parametrize("field", [blocks(7)], indirect=True)
@pytest.mark.nightly
def test_two_requests_that_outgrow_a_pool_of_seven_blocks(field: Field) -> None:
    """One request is preempted, which the engine reports, and both answer as cold."""
    judgement = field.judged(CONNECTOR_RECIPE)
    assert judgement.findings == ()
    assert judgement.evidence[Pressure.PREEMPTIONS] >= 1
    assert sum(outcome.preemptions or 0 for outcome in judgement.history.outcomes) >= 1


@pytest.mark.parametrize("field", [blocks(64)], indirect=True)
def test_a_a_b_a_with_a_shared_prelude(field: Field) -> None:
    """The last A hits all its whole blocks although B came in between. The report had 0 hits at 23 % usage."""
    a = alone(("prelude", 300), ("tail a", 200))
    b = alone(("prelude", 300), ("tail b", 200))
    judgement = field.judged(Workload((a, a, b, a)))
    assert judgement.findings == ()
    last = judgement.history.outcomes[-1]
    assert last.cached_tokens == (len(last.prompt) - 1) // BLOCK * BLOCK
    assert judgement.evidence[Reuse.RETURN_HITS] == 1


@pytest.mark.parametrize("field", [blocks(7)], indirect=True)
@pytest.mark.nightly
def test_the_same_case_three_times_gives_one_history(field: Field) -> None:
    """Tokens, counts, preemptions and times are byte for byte equal. The workload is read from JSON like a saved
    case.
    """
    saved = msgspec.json.decode(msgspec.json.encode(CONNECTOR_RECIPE), type=Workload)
    histories = {msgspec.json.encode(field.run(saved, nonce="once")) for _ in range(3)}
    assert len(histories) == 1
    assert b'"preemptions":1' in histories.pop()
