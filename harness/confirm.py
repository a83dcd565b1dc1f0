"""Confirms a counterexample before anybody hears of it.

On an engine started for this alone: the failing request's prompt comes first, cold and under a salt of its own, which
must give the oracle's answer; then the whole workload is replayed, which gives the reproduction rate: first with the
very tokens that failed, for a fault may hang on them, then under new nonces. On an engine without prefix caching the
same workload is the control: if it fails there as well, the fault is not the cache's.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from adapters.base import EngineError
from adapters.checked import CheckedEngine
from harness.checkers.finding import EXACT, Rule
from harness.checkers.tokens import closest, counts
from harness.history import Outcome
from harness.judge import Judgement
from harness.oracle.base import OracleError, judged, question
from harness.oracle.engine import EngineOracle
from harness.requirement import Failing
from harness.workload import Workload
from reports.schema import FailureClass, Reproduction


class Observe(Protocol):
    """Runs a workload on an engine and judges it; under a new nonce unless one is given."""

    def __call__(self, engine: CheckedEngine, workload: Workload, nonce: str | None = None) -> Judgement:
        """The judgement. Raises EngineError when the engine cannot be had."""


class Confirmed(msgspec.Struct, frozen=True):
    """What became of a counterexample: the run to report, its class, and how often it failed where."""

    judgement: Judgement
    failure_class: FailureClass
    reproduction: Reproduction
    history_dependent: bool
    again: tuple[Judgement, ...] = ()  # the replays
    off: tuple[Judgement, ...] = ()  # those with prefix caching off


def confirm(
    failing: Failing,
    *,
    observe: Observe,
    fresh: CheckedEngine | None,
    fresh_oracle: EngineOracle | None,
    control: CheckedEngine | None,
    attached: CheckedEngine | None,
    replays: int,
    rule: Rule = EXACT,
    across: str | None = None,
) -> Confirmed:
    """Replay on the given engines. `attached`: somebody's running server, the next best thing where none can be
    started afresh; new nonces at least keep the replays off the keys of the first run.

    `across`: the other engine whose answers count. Where a cold engine of the tested kind differs from it as well, no
    cache is needed to be wrong, and one of the two engines is.
    """
    same = failing.judgement.history.nonce
    agrees, again, note = None, [], "no fresh engine could be had"
    try:
        agrees, doubt = (fresh_answer_agrees(failing, fresh_oracle, rule) if fresh_oracle else None), ""
    except OracleError as problem:
        doubt = str(problem)
    if attached is not None:
        again = replay(failing.workload, attached, observe, replays)
        count = sum(bool(j.findings) for j in again)
        note = f"the engine is attached and not started afresh; replayed on it, it failed {count} of {len(again)} times"
    if fresh is not None:
        note = doubt
        # A second tier may not know of salts: what the oracle asked may lie in it under the very tokens.
        untouched = fresh_oracle is None or (fresh_oracle.salted and not failing.judgement.history.shape.second_tier)
        again = replay(failing.workload, fresh, observe, replays, nonce=same if untouched else None)
    off = replay(failing.workload, control, observe, replays, nonce=same) if control is not None else []
    failed = [j for j in again if j.findings]
    failed_off = [j for j in off if any(f.checker in ("tokens", "liveness") for f in j.findings)]
    # Under the old nonce an engine that loses salts shows hits on what the oracle has just asked: new ones tell more.
    best = next((j for j in failed if j.history.nonce != same), failed[0]) if failed else failing.judgement
    apart = across is not None and agrees is False
    if apart:
        said = f"Without any cache the engine differs from {across} on this prompt too: one of the two is wrong."
        note = f"{note}. {said}" if note else said
    not_the_cache = (bool(failed_off) or apart) and best.worst().checker in ("tokens", "liveness")
    return Confirmed(
        judgement=best,
        failure_class=FailureClass.NOT_THE_CACHE if not_the_cache else best.worst().failure_class,
        reproduction=Reproduction(
            while_shrinking_failed=failing.failed,
            while_shrinking_tries=failing.tries,
            fresh_failed=len(failed) if fresh is not None else None,
            fresh_tries=len(again) if fresh is not None else None,
            caching_off_failed=len(failed_off) if control is not None else None,
            caching_off_tries=len(off) if control is not None else None,
            fresh_oracle_agrees=agrees if fresh is not None else None,
            note=note,
        ),
        history_dependent=fresh is not None and not failed,
        again=tuple(again),
        off=tuple(off),
    )


def fresh_answer_agrees(failing: Failing, oracle: EngineOracle, rule: Rule = EXACT) -> bool | None:
    """Whether a just-started engine, asked the failing prompt first of all, gives the oracle's cold answer, as far as
    the rule lets a divergence count.

    None where there is no such answer, or the engine's would not be cold: several answers to a prompt hit one another.
    """
    outcome = failing_outcome(failing.judgement)
    if outcome is None or outcome.surface.answers > 1:
        return None
    expected = closest(outcome, failing.judgement.answers)
    asked = [question(outcome, identity) for identity in outcome.identities]
    return any(not counts(expected, oracle.ask_anew(q).ids, rule) for q in asked)


def failing_outcome(judgement: Judgement) -> Outcome | None:
    """The request that the worst finding is about, if it has an answer, and there is a cold one to compare it with."""
    number = judgement.worst().request
    return next((o for o in judged(judgement.history) if o.request == number), None)


def replay(
    workload: Workload, engine: CheckedEngine, observe: Observe, times: int, *, nonce: str | None = None
) -> list[Judgement]:
    """Run a workload several times, until the engine is lost: first under the given nonce, then under new ones.

    Only an engine that has not seen the nonce's prompts may be given it.
    """
    judged = []
    for number in range(times):
        try:
            judged.append(observe(engine, workload, nonce if number == 0 else None))
        except EngineError:
            break
        if judged[-1].history.engine_lost is not None:
            break
    return judged
