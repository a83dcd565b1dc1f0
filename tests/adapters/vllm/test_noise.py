"""A real vLLM whose scores waver: it is calibrated, its right answers pass and its wrong ones do not."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest
from support.faults import plant
from support.nightly import with_samples

from coldproof.adapters.protocol.requests import CompletionRequest, ResponseOptions
from coldproof.adapters.registry import CELLS
from coldproof.harness.event_log import EventLog
from coldproof.harness.execution.engines.cell_engines import CellEngines
from coldproof.harness.execution.engines.pool import EnginePool
from coldproof.harness.execution.runner.runner import WorkloadRun
from coldproof.harness.history.records import History
from coldproof.harness.judgement.judge import Judgement, judge
from coldproof.harness.options import Options
from coldproof.harness.workload.steps import Burst, Prompt, Request, Segment, Workload
from coldproof.reports.schema.verdict import FailureClass

pytestmark = pytest.mark.engine
SIGMA = 0.05


@pytest.fixture(scope="module", params=with_samples(["gaussian", "batch"], "gaussian"))
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CellEngines]:
    """An engine under test and a cold one, without a model, with noise of either kind."""
    folder = tmp_path_factory.mktemp("noisy")
    noise = f"{request.param}:{SIGMA}"
    options = Options(engine="vllm-inproc", report_dir=folder, worker="fingerprint", noise=noise)
    session = EnginePool(options, EventLog(folder / "events.ndjson"))
    try:
        session.prepare()
        yield CellEngines.open(session, CELLS["default"])
    finally:
        session.close()


def shared_preludes(count: int) -> Workload:
    """Prompts behind one prelude of three blocks, one after the other and then all at once."""
    requests = [
        Request(prompt=Prompt((Segment("prelude", 96), Segment(f"tail {i}", 9))), max_tokens=12) for i in range(count)
    ]
    return Workload((*(Burst(requests=(request,)) for request in requests), Burst(requests=tuple(requests))))


def run(bench: CellEngines, workload: Workload) -> tuple[History, Judgement]:
    """The workload on the engine under test, judged by what was calibrated."""
    nonce = secrets.token_hex(3)
    history = WorkloadRun(
        bench.engine, workload, nonce, bench.contents, bench.pool.workspace.folder(), scored=True
    ).history()
    return history, judge(history, bench.cold, bench.rule, exclusive=True)


def test_noise_is_found_and_measured(bench: CellEngines) -> None:
    """Not exact; scores lie sqrt(2) sigma apart, and the band reaches several times as far.

    How far depends on the sample: of 3,000 of normal noise the middle one came to 8.5, one in a hundred to 12, one in a
    thousand to 17 and the largest to 21, for doubts about the tail's shape go to the larger threshold.
    """
    band = bench.rule.band
    assert band is not None
    assert not bench.rule.exact
    assert 5 < band.score_nats / (SIGMA * 2**0.5) < 40
    assert band.positions > 1000
    assert 0 < band.flips < 0.2
    assert "COLDPROOF_NOISE" in bench.engine.config["environment"]


def test_scores_waver_and_the_best_token_is_told(bench: CellEngines) -> None:
    """The same prompt twice: other scores; the best token's score is never below the token's own."""
    prompt = tuple(range(40, 100))
    asked = CompletionRequest(
        model=bench.engine.base_model,
        prompt=prompt,
        max_tokens=1,
        surface=ResponseOptions(prompt_logprobs=True, logprobs=True),
    )
    beside = [bench.cold.engine.complete(asked), bench.engine.complete(asked)]
    scores = [answer.prompt_logprobs for answer in beside]
    assert scores[0] != scores[1]
    best = beside[0].prompt_best
    assert best is not None
    assert best[0] is None
    assert all(b >= s for b, s in zip(best[1:], (scores[0] or ())[1:], strict=True) if b is not None and s is not None)


def test_right_answers_pass_though_they_part(bench: CellEngines) -> None:
    """Sixty requests, most of them hits; a token in twenty is another than the cold one's."""
    history, judgement = run(bench, shared_preludes(30))
    assert judgement.findings == ()
    assert all(found.explained for found in judgement.noise)
    assert judgement.noise
    assert sum(outcome.hit_at_least > 0 for outcome in history.outcomes) >= 50
    assert all(token.logprob is not None for outcome in history.outcomes for token in outcome.tokens)


def test_a_wrong_block_is_caught(bench: CellEngines, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers that read what another prompt left, which no noise explains; the engine's own word for it aside."""
    plant("half-a-block-is-hashed", monkeypatch)
    prelude = Segment("prelude", 92)
    near = Segment("prelude", 92, changed=90)
    asked = [Request(prompt=Prompt((one, Segment("tail", 20))), max_tokens=12) for one in (prelude, near)]
    history, judgement = run(bench, Workload(tuple(Burst(requests=(one,)) for one in asked)))
    wrong = [found for found in judgement.findings if found.checker == "tokens"]
    assert [found.request for found in wrong] == [1]
    assert wrong[0].failure_class in (FailureClass.CORRUPT, FailureClass.STALE_STATE, FailureClass.CROSS_REQUEST)
    assert history.wrong_reads
