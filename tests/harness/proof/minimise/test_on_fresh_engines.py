"""The second reduction keeps the case as strong: it fails as often, by the same check, on an engine of its own."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest
from support.histories import ask, burst, history

from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.protocol.engine import EngineDied
from coldproof.harness.judgement.finding import Finding
from coldproof.harness.judgement.judge import Judgement
from coldproof.harness.judgement.trial import Failing
from coldproof.harness.proof.confirm.confirm import Confirmed
from coldproof.harness.proof.minimise.on_fresh_engines import fails_as_often, minimise_on_fresh_engines
from coldproof.harness.proof.minimise.reduce import smaller
from coldproof.harness.proof.minimise.simplify import simpler
from coldproof.harness.schema.case import Reproduction
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.workload.steps import Workload

WRONG = Finding(checker="tokens", failure_class=FailureClass.CORRUPT, sentence="Wrong.")
LEAK = Finding(checker="conservation", failure_class=FailureClass.ACCOUNTING, sentence="Something is left.")
Fails = Callable[[Workload], Finding | None]


class Engine:
    """A stand-in for an engine, which lists what was run on it."""

    def __init__(self) -> None:
        self.ran: list[Workload] = []

    def alive(self) -> bool:
        """Return True: the engine never ends."""
        return True


class Engines:
    """Fresh stand-in engines on which runs fail as `fails` says. `said` counts the confirmations."""

    def __init__(self, fails: Fails) -> None:
        self.fails, self.started, self.confirmations = fails, [Engine()], 0

    def another(self) -> CheckedEngine:
        """Return an engine that has run nothing."""
        self.started.append(Engine())
        return cast(CheckedEngine, self.started[-1])

    def observe(self, engine: Any, workload: Workload, nonce: str | None = None) -> Judgement:
        """Run and judge a workload."""
        engine.ran.append(workload)
        found = self.fails(workload)
        return Judgement(
            history=history(workload=workload),
            answers={},
            findings=(found,) if found else (),
            noise=(),
            evidence=Counter(),
        )

    def confirm(self, failing: Failing, *, replays: int = 4) -> Confirmed:
        """Return the replays of a workload on one more engine."""
        self.confirmations += 1
        engine = self.another()
        ran = [self.observe(engine, failing.workload) for _ in range(replays)]
        failed = [one for one in ran if one.findings]
        return Confirmed(
            judgement=failed[0] if failed else failing.judgement,
            failure_class=FailureClass.CORRUPT,
            reproduction=Reproduction(
                while_shrinking_failed=failing.failed,
                while_shrinking_tries=failing.tries,
                fresh_failed=len(failed),
                fresh_tries=replays,
            ),
            history_dependent=not failed,
            replays=tuple(ran),
        )

    def reduced(self, workload: Workload, *, own_engines: bool = True, seconds: float = 3600) -> Confirmed:
        """Return the reduced case of this failing workload."""
        first = cast(CheckedEngine, self.started[0])
        case = self.confirm(Failing(workload, self.observe(first, workload), failed=1, tries=1))
        return minimise_on_fresh_engines(
            case,
            first,
            another=self.another if own_engines else None,
            variants=lambda one, about: itertools.chain(smaller(one, about), simpler(one)),
            observe=self.observe,
            confirm=self.confirm,
            until=time.monotonic() + seconds,
        )


CROWD = Workload((burst(ask(("other", 50))), burst(ask(("bad", 100)), ask(("bad", 100)))))


def fails_on_the_second_request(workload: Workload) -> Finding | None:
    """Return a finding if two requests have at least 33 tokens of the segment `bad`, concurrent or not."""
    long = [r for _, _, r in workload.requests() if any(s.name == "bad" and s.length > 32 for s in r.prompt.segments)]
    return WRONG if len(long) > 1 else None


@pytest.mark.parametrize("own_engines", [True, False])
def test_steps_concurrency_and_length_that_are_not_needed_go(own_engines: bool) -> None:
    """The smallest workload that fails is left."""
    engines = Engines(fails_on_the_second_request)
    made = engines.reduced(CROWD, own_engines=own_engines)
    request = ask(("bad", 33))
    assert made.judgement.history.workload == Workload((burst(request), burst(request)))
    assert made.reproduction.fresh_failed == made.reproduction.fresh_tries == 4
    assert engines.started[-1].ran == [made.judgement.history.workload] * 4  # the last word: nothing ran before it


def test_each_variant_has_an_engine_of_its_own_where_that_is_quick() -> None:
    """No variant then fails because of what the one before it left behind. Otherwise one engine runs all variants."""
    engines = Engines(fails_on_the_second_request)
    engines.reduced(CROWD)
    tried = engines.started[2:-1]  # between what found the case and confirmed it, and the last word
    assert all(len(set(map(repr, engine.ran))) == 1 for engine in tried)
    shared = Engines(fails_on_the_second_request)
    shared.reduced(CROWD, own_engines=False)
    assert len(shared.started) == 3
    assert len(shared.started[0].ran) > 10


def test_what_fails_less_often_when_it_is_smaller_stays_as_it_was() -> None:
    """Concurrent requests fail each time and serial ones every second time, so serial is no simplification."""
    alternate = itertools.cycle([True, False])

    def fails(workload: Workload) -> Finding | None:
        if fails_on_the_second_request(workload) is None:
            return None
        return WRONG if workload.depends_on_timing() or next(alternate) else None

    made = Engines(fails).reduced(CROWD)
    assert made.judgement.history.workload.depends_on_timing()
    assert made.reproduction.fresh_failed == 4


def test_a_variant_that_is_not_confirmed_is_dropped() -> None:
    """A variant that failed during reduction may pass on the engine that confirms. The case then stays as it was."""
    engines = Engines(fails_on_the_second_request)
    whole = engines.fails
    engines.fails = lambda workload: whole(workload) if engines.confirmations < 2 or workload == CROWD else None
    made = engines.reduced(CROWD)
    assert engines.confirmations == 2
    assert made.judgement.history.workload == CROWD


def test_another_check_is_another_failure() -> None:
    """A variant with a finding of another check is not reduced further."""
    engines = Engines(lambda workload: WRONG if workload == CROWD else LEAK)
    assert engines.reduced(CROWD).judgement.history.workload == CROWD


def test_without_time_or_a_failure_on_fresh_engines_nothing_is_run() -> None:
    """The case stays as it is."""
    engines = Engines(fails_on_the_second_request)
    assert engines.reduced(CROWD, seconds=-1).judgement.history.workload == CROWD
    assert engines.confirmations == 1
    never = Engines(lambda _: None)
    case = never.confirm(Failing(CROWD, never.observe(Engine(), CROWD), failed=1, tries=1))
    kept = minimise_on_fresh_engines(
        case,
        never.another(),
        another=never.another,
        variants=lambda one, _: simpler(one),
        observe=never.observe,
        confirm=never.confirm,
        until=time.monotonic() + 3600,
    )
    assert kept is case


@pytest.mark.parametrize(
    ("outcomes", "failed", "runs", "often"),
    [("FF--", 2, 2, True), ("F-F-", 2, 3, True), ("-F-F", 2, 4, True), ("--", 3, 2, False), ("F--", 3, 3, False)],
)
def test_no_more_runs_than_needed_for_a_decision(outcomes: str, failed: int, runs: int, often: bool) -> None:
    """Four tries end early when there are enough failures or too few tries left."""
    results = iter(outcomes)
    engines = Engines(lambda _: WRONG if next(results) == "F" else None)
    found = fails_as_often(CROWD, engines.another(), engines.observe, "tokens", failed=failed, tries=4)
    assert (found is not None) is often
    assert len(engines.started[-1].ran) == runs
    assert found is None or (found.failed, found.tries) == (failed, runs)


def test_an_engine_that_is_lost_proves_nothing() -> None:
    """The case stays as it was confirmed."""
    engines = Engines(fails_on_the_second_request)
    unmodified = engines.observe

    def observe(engine: Any, workload: Workload, nonce: str | None = None) -> Judgement:
        if workload != CROWD:
            raise EngineDied("gone")
        return unmodified(engine, workload, nonce)

    engines.observe = observe  # type: ignore[method-assign]
    made = engines.reduced(CROWD)
    assert made.judgement.history.workload == CROWD
    assert msgspec.to_builtins(made.reproduction)["fresh_failed"] == 4
