"""What does not fail alone on a fresh engine is tried as it was found, and behind what its engine had run before."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest
from support.confirmation import WRONG
from support.histories import ask, burst, history, outcome

from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.protocol.engine import EngineDied
from coldproof.adapters.protocol.provenance import Writer, WrongRead
from coldproof.harness.history.records import History
from coldproof.harness.judgement.finding import Finding
from coldproof.harness.judgement.judge import Judgement
from coldproof.harness.judgement.trial import Failing, Ran
from coldproof.harness.proof.confirm.confirm import Confirmed
from coldproof.harness.proof.confirm.with_prior_workloads import AS_FOUND, OWN_TOKENS, affordable, confirm_further
from coldproof.harness.schema.case import Reproduction
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.workload.steps import Workload

HANG = Finding(checker="liveness", failure_class=FailureClass.HANG, sentence="Request 0 got no answer.", request=0)
LATE = Finding(checker="accounting", failure_class=FailureClass.ACCOUNTING, sentence="Off by one.")
REDUCED, FOUND = (Workload((burst(ask(("stem", length))),)) for length in (10, 90))
Leaks = Callable[[list[str]], bool]  # whether what an engine has run makes it fail


def judged(workload: Workload, nonce: str, *findings: Finding) -> Judgement:
    """Return the judgement of a workload run under a nonce."""
    seen = msgspec.structs.replace(history(), workload=workload, nonce=nonce)
    return Judgement(history=seen, answers={}, findings=findings, noise=(), evidence={})


def earlier(count: int) -> tuple[Ran, ...]:
    """Return prior runs of one second each, whose nonces are their numbers."""
    return tuple(Ran(Workload((burst(ask((f"run {i}", 5))),)), str(i), 1.0) for i in range(count))


def failed(workload: Workload, ran: tuple[Ran, ...] = (), nonce: str = "then") -> Failing:
    """Return a counterexample with the prior runs of its engine."""
    return Failing(workload, judged(workload, nonce, HANG), failed=1, tries=1, earlier=ran)


class Engines:
    """Fresh engines, each with a list of what it has run. They fail if `leaks` is true of the list."""

    def __init__(self, leaks: Leaks, *, said: Finding = HANG, dies: bool = False) -> None:
        self.leaks, self.said, self.dies = leaks, said, dies
        self.ran: dict[str, list[str]] = {}
        self.numbers = itertools.count()

    def start(self) -> CheckedEngine:
        """Start another engine, which has run nothing."""
        name = f"fresh {next(self.numbers)}"
        self.ran[name] = []
        return cast(CheckedEngine, name)

    def rerun(self, engine: CheckedEngine, ran: Ran) -> History:
        """Run a prior workload. The engine is lost in it if `dies` is set."""
        self.ran.setdefault(str(engine), []).append(ran.nonce)
        return history(engine_lost="a hang" if self.dies else None)

    def observe(self, engine: CheckedEngine, workload: Workload, nonce: str | None = None) -> Judgement:
        """Run and judge a workload."""
        run = self.ran.setdefault(str(engine), [])
        run.append(nonce or "new")
        if self.leaks(run):
            return judged(workload, nonce or "new", self.said)
        return judged(workload, nonce or "new")


def confirmed(workload: Workload, *, fails: bool) -> Confirmed:
    """Return the confirmation of a workload on a fresh engine."""
    again = Reproduction(while_shrinking_failed=1, while_shrinking_tries=3, fresh_failed=int(fails), fresh_tries=3)
    return Confirmed(judged(workload, "then", HANG), FailureClass.HANG, again, history_dependent=not fails)


def further(
    engines: Engines,
    *found: Failing,
    alone: tuple[Workload, ...] = (),
    first: Confirmed | None = None,
    **more: Any,
) -> Confirmed:
    """Return the confirmation after the reduced workload passed on a fresh engine (`first`).

    The workloads in `alone` fail on a fresh engine without prior workloads.
    """
    usual: dict[str, Any] = {"start": engines.start, "observe": engines.observe, "control": None, "seconds": 60.0}
    return confirm_further(
        first or confirmed(REDUCED, fails=False),
        found,
        confirm=lambda failing, _: confirmed(failing.workload, fails=failing.workload in alone),
        rerun=engines.rerun,
        **(usual | more),
    )


def test_a_larger_workload_that_fails_on_a_fresh_engine_is_what_is_shown() -> None:
    """No prior workload is needed, so the case needs none."""
    made = further(Engines(lambda _: True), failed(FOUND, earlier(4)), alone=(FOUND,))
    assert made.judgement.history.workload == FOUND
    assert not made.history_dependent
    assert made.reproduction.note == AS_FOUND
    assert made.reproduction.workloads_before is None


def test_what_passed_alone_is_not_tried_alone_again() -> None:
    """The reduced workload was already run alone, and each other workload is run alone once."""
    tried = []
    engines = Engines(lambda _: False)
    confirm_further(
        confirmed(REDUCED, fails=False),
        (failed(REDUCED), failed(FOUND), failed(FOUND)),
        start=engines.start,
        confirm=lambda failing, _: tried.append(failing.workload) or confirmed(failing.workload, fails=False),  # type: ignore[func-returns-value]
        rerun=engines.rerun,
        observe=engines.observe,
        control=None,
        seconds=60.0,
    )
    assert tried == [FOUND]


def test_what_needs_its_own_tokens_fails_with_them_alone() -> None:
    """No prior workload is needed, so the failure does not depend on its history."""
    engines = Engines(lambda run: run == ["then"])
    made = further(engines, failed(FOUND, earlier(4)))
    assert made.judgement.history.workload == REDUCED
    assert (made.reproduction.fresh_failed, made.reproduction.fresh_tries) == (1, 4)
    assert made.reproduction.note == OWN_TOKENS
    assert made.reproduction.workloads_before is None
    assert not made.history_dependent


def test_own_tokens_that_were_replayed_already_are_not_tried_again() -> None:
    """A fresh engine had these tokens in its first replay. Only prior workloads are left, and here are none."""
    engines = Engines(lambda run: run == ["then"])
    replayed = msgspec.structs.replace(confirmed(REDUCED, fails=False), replays=(judged(REDUCED, "then"),))
    made = further(engines, failed(REDUCED), first=replayed)
    assert made == replayed
    assert not engines.ran


def test_prior_workloads_are_run_before_it_and_reduced_to_what_is_needed() -> None:
    """One of eight prior runs causes the failure here. The workload that failed comes last, under its own nonce."""
    engines = Engines(lambda run: "5" in run)
    made = further(engines, failed(FOUND, earlier(8)))
    assert made.reproduction.workloads_before == 1
    assert made.judgement.history.nonce == "then"
    assert made.history_dependent
    assert "after one prior workload" in made.reproduction.note
    assert engines.ran["fresh 1"] == ["then"]
    assert engines.ran["fresh 2"] == [*"01234567", "then"]
    assert list(engines.ran.values())[-1] == ["5", "then"]


def test_the_workload_whose_kv_was_read_is_tried_first() -> None:
    """The engine reports the writer, so neither the counterexample alone nor all prior workloads are tried."""
    wrong = WrongRead(
        request="cmpl-then.0.x", step=1, layer=0, group=0, column=0, block=3, first=0, last=31, found=7,
        writer=Writer(request="cmpl-5.0.x", position=0, adapter=None, content=None),
    )  # fmt: skip
    read = failed(FOUND, earlier(8))
    history = msgspec.structs.replace(read.judgement.history, wrong_reads=(wrong,))
    read = msgspec.structs.replace(read, judgement=msgspec.structs.replace(read.judgement, history=history))
    engines = Engines(lambda run: "5" in run)
    made = further(engines, read)
    assert list(engines.ran.values()) == [["5", "then"]]
    assert made.reproduction.workloads_before == 1


def test_accumulated_damage_needs_all_prior_workloads() -> None:
    """No half of the prior workloads is enough for this failure."""
    made = further(Engines(lambda run: len(run) > 6), failed(FOUND, earlier(6)))
    assert made.reproduction.workloads_before == 6
    assert "after 6 prior workloads" in made.reproduction.note


@pytest.mark.parametrize(
    "engines",
    [
        Engines(lambda _: False),
        Engines(lambda _: True, said=LATE),
        Engines(lambda run: len(run) > 1, dies=True),
    ],
    ids=["passes", "fails differently", "lost before"],
)
def test_what_does_not_fail_in_the_same_way_stays_unconfirmed(engines: Engines) -> None:
    """An engine that was lost in a prior workload does not confirm the failure either."""
    made = further(engines, failed(FOUND, earlier(3)))
    assert made.reproduction.workloads_before is None
    assert made.history_dependent
    assert made.judgement.history.workload == REDUCED


def test_nothing_is_tried_without_time_or_engine() -> None:
    """The first confirmation stays if the time is used up or if no engine starts."""
    for given in ({"seconds": 0.0}, {"start": lambda: None}):
        assert further(Engines(lambda _: True), failed(FOUND, earlier(3)), alone=(FOUND,), **given) == confirmed(
            REDUCED, fails=False
        )


def test_an_engine_that_is_lost_confirms_nothing() -> None:
    """The engine is lost in a prior workload."""

    def lost(*_: Any) -> History:
        raise EngineDied("lost")

    engines = Engines(lambda run: len(run) > 1)
    engines.rerun = lost  # type: ignore[method-assign]
    assert further(engines, failed(FOUND, earlier(3))).reproduction.workloads_before is None


def test_what_fails_without_the_cache_too_is_not_the_caches() -> None:
    """The control runs the same prior workloads with caching off."""
    control = cast(CheckedEngine, "control")
    made = further(Engines(lambda run: len(run) > 2), failed(FOUND, earlier(2)), control=control)
    assert made.failure_class is FailureClass.NOT_THE_CACHE
    made = further(Engines(lambda run: run[:1] == ["0"]), failed(FOUND, earlier(1)), control=None)
    assert made.failure_class is FailureClass.HANG


@pytest.mark.parametrize(("cached", "named"), [(0, FailureClass.NOT_THE_CACHE), (32, FailureClass.CORRUPT)])
def test_a_control_that_reuses_kv_is_no_control(cached: int, named: FailureClass) -> None:
    """With caching off, its wrong answer has cached tokens: KV of a session, for example."""
    ended = Engines(lambda run: len(run) > 2, said=WRONG)
    control = cast(CheckedEngine, "control")

    def observe(engine: CheckedEngine, workload: Workload, nonce: str | None = None) -> Judgement:
        one = ended.observe(engine, workload, nonce)
        hit = outcome(0, range(40), cached_tokens=cached if engine is control else 0)
        return msgspec.structs.replace(one, history=msgspec.structs.replace(one.history, outcomes=(hit,)))

    found = Failing(FOUND, judged(FOUND, "then", WRONG), failed=1, tries=1, earlier=earlier(2))
    made = further(ended, found, control=control, observe=observe)
    assert made.reproduction.workloads_before == 2
    assert made.failure_class is named


@pytest.mark.parametrize(("seconds", "kept"), [(0.5, ""), (2.0, "34"), (9.0, "01234")])
def test_only_the_latest_are_run_if_there_is_no_time_for_all(seconds: float, kept: str) -> None:
    """The recorded times of the prior workloads decide how many are run."""
    assert [ran.nonce for ran in affordable(earlier(5), seconds)] == list(kept)
