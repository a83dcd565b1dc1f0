"""The request kind that crashes the engine is found by running the crash without it, and never guessed."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from support.confirmation import judgement

from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.protocol.requests import PLAIN, Abort, ResponseOptions
from coldproof.harness.judgement.finding import Finding
from coldproof.harness.judgement.judge import Judgement
from coldproof.harness.proof.diagnose.crashing_kind import SURVIVALS, crashing_kind, has_died
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.session.selftest.scripted_engine import ScriptedEngine
from coldproof.harness.workload.request_kinds import RequestKind, may_be_the_cause, probe_of, without_kind
from coldproof.harness.workload.steps import Burst, Prompt, Request, Route, Segment, SetAdapter, Workload
from coldproof.harness.workload.validity import is_valid

STEM = Prompt((Segment("stem", 40),))
SCORES = ResponseOptions(prompt_logprobs=True)
LOAD = SetAdapter(name="tenant", content="A", path="files-A")


def request(response_options: ResponseOptions = PLAIN, *, adapter: str | None = None) -> Request:
    """Return a request for the common prompt."""
    return Request(prompt=STEM, options=response_options, adapter=adapter)


BESIDE = Workload((Burst(requests=(request(), request(SCORES))),))
SAMPLES = {
    RequestKind.SCORES_BESIDE: BESIDE,
    RequestKind.SCORES: Workload((Burst(requests=(request(SCORES),)),)),
    RequestKind.SEVERAL: Workload((Burst(requests=(request(ResponseOptions(answers=2)),)),)),
    RequestKind.STOP: Workload((Burst(requests=(request(ResponseOptions(stop=("a",))),)),)),
    RequestKind.PATTERN: Workload((Burst(requests=(request(ResponseOptions(pattern="a+")),)),)),
    RequestKind.LOGPROBS: Workload((Burst(requests=(request(ResponseOptions(logprobs=True)),)),)),
    RequestKind.ADAPTER: Workload((LOAD, Burst(requests=(request(adapter="tenant"),)))),
}


class Dying:
    """An observer of engines that crash on some workloads.

    `answers_first`: the engine answers with an error a moment before its process ends.
    """

    def __init__(self, dies: Callable[[Workload], bool], *, answers_first: bool = False) -> None:
        self.dies, self.answers_first = dies, answers_first
        self.engines: list[ScriptedEngine] = []

    def start(self) -> CheckedEngine:
        """Start another engine."""
        self.engines.append(ScriptedEngine())
        return CheckedEngine(self.engines[-1])

    def __call__(self, _: CheckedEngine, workload: Workload, nonce: str | None = None) -> Judgement:
        """Run a workload."""
        seen = judgement("new", failed=False)
        if not self.dies(workload):
            return seen
        found = Finding(checker="liveness", failure_class=FailureClass.CRASH, sentence="It ended.")
        history = msgspec.structs.replace(seen.history, engine_lost=None if self.answers_first else "gone")
        self.engines[-1].dead = True
        return msgspec.structs.replace(seen, history=history, findings=(found,))

    def kind(self, workload: Workload) -> RequestKind | None:
        """Return the request kind that is found to crash the engine, or None."""
        return crashing_kind(workload, start=self.start, observe=self)


@pytest.mark.parametrize("kind", RequestKind)
def test_a_workload_of_a_kind_has_it_and_can_be_run_without(kind: RequestKind) -> None:
    """Every kind can be removed, and a second removal changes nothing."""
    assert may_be_the_cause(kind, SAMPLES[kind])
    without = without_kind(SAMPLES[kind], kind)
    assert is_valid(without)
    assert without_kind(without, kind) == without
    assert not may_be_the_cause(kind, without)
    assert sum(1 for _ in without.requests()) == sum(1 for _ in SAMPLES[kind].requests())


@pytest.mark.parametrize("kind", RequestKind)
def test_the_kind_without_which_an_engine_survives_is_found(kind: RequestKind) -> None:
    """The engine that survived without the kind must crash again with it."""
    dying = Dying(lambda workload: without_kind(workload, kind) != workload, answers_first=True)
    assert dying.kind(SAMPLES[kind]) is kind


def test_the_narrowest_kind_is_found() -> None:
    """Scores beside other requests are the narrower kind.

    Scores are the kind if sending them alone crashes the engine.
    """
    dying = Dying(lambda workload: any(len(step.requests) > 1 for step in workload.steps if isinstance(step, Burst)))
    assert dying.kind(BESIDE) is RequestKind.SCORES_BESIDE
    assert (
        Dying(lambda w: any(r.options.prompt_logprobs for _, _, r in w.requests())).kind(BESIDE) is RequestKind.SCORES
    )


def test_an_engine_that_always_or_never_crashes_again_has_no_kind() -> None:
    """The crash may need more than the workload, or have another cause."""
    assert Dying(lambda _: True).kind(BESIDE) is None
    assert Dying(lambda _: False).kind(BESIDE) is None


def test_an_engine_that_crashes_sometimes_has_no_kind() -> None:
    """The engine crashes once in a few runs, with the kind or without it."""
    runs: list[Workload] = []

    def dies(workload: Workload) -> bool:
        runs.append(workload)
        return len(runs) % SURVIVALS == 0

    assert Dying(dies).kind(SAMPLES[RequestKind.PATTERN]) is None


def test_requests_that_meet_only_sometimes_have_a_few_tries() -> None:
    """Over HTTP, timing decides whether two requests are computed in one step."""
    runs: list[Workload] = []

    def dies(workload: Workload) -> bool:
        runs.append(workload)
        return workload == BESIDE and runs.count(BESIDE) > 1

    assert Dying(dies).kind(BESIDE) is RequestKind.SCORES_BESIDE


def test_an_error_of_an_engine_that_stays_up_is_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine refuses these requests and stays up, so they can be sent again."""
    monkeypatch.setattr("coldproof.harness.execution.engines.deaths.DEATH_SECONDS", 0.2)
    seen = judgement("new", failed=False)
    found = Finding(checker="liveness", failure_class=FailureClass.API, sentence="HTTP 500.")
    assert not has_died(CheckedEngine(ScriptedEngine()), msgspec.structs.replace(seen, findings=(found,)))


def test_an_adapter_is_not_the_cause_if_another_step_may_be() -> None:
    """A reload, an abort or concurrency may be the cause. Without adapters most of the suites have nothing to test."""
    reload = msgspec.structs.replace(LOAD, content="B", route=Route.IN_PLACE)
    one = request(adapter="tenant")
    aborted = msgspec.structs.replace(one, abort=Abort(after_tokens=1))
    crowd = Burst(requests=(one,) * 3)
    for steps in ((LOAD, reload, Burst(requests=(one,))), (LOAD, Burst(requests=(aborted,))), (LOAD, crowd)):
        assert not may_be_the_cause(RequestKind.ADAPTER, Workload(steps))


@pytest.mark.parametrize("kind", RequestKind)
def test_a_probe_is_of_its_kind(kind: RequestKind) -> None:
    """Only the two kinds with scores have a probe: the calibration's own requests are of these kinds."""
    probe = probe_of(kind, 64)
    assert (probe is None) is (kind not in (RequestKind.SCORES_BESIDE, RequestKind.SCORES))
    assert probe is None or (is_valid(probe) and may_be_the_cause(kind, probe))
