"""Confirms a counterexample before it is reported.

It uses an engine that is started only for this. First, the engine answers the failing request's prompt, cold and under
a unique salt: it must give the oracle's answer. Then the whole workload is replayed to measure the reproduction rate:
first with the same tokens that failed, because a fault may depend on them, then under new nonces. An engine without
prefix caching runs the same workload as a control: if it fails there as well, the cache is not the cause, unless that
engine reused KV all the same.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.protocol.engine import EngineError
from coldproof.harness.execution.oracles.engine import EngineOracle
from coldproof.harness.history.records import Outcome
from coldproof.harness.judgement.checkers.tokens import closest, counts
from coldproof.harness.judgement.criteria import OF_ANSWERS, WITHOUT_CACHE
from coldproof.harness.judgement.finding import EXACT, Rule
from coldproof.harness.judgement.judge import Judgement
from coldproof.harness.judgement.no_hits import had_no_hit, only_reused_kv, with_wrong_count
from coldproof.harness.judgement.oracle import OracleError, comparable_outcomes, question
from coldproof.harness.judgement.trial import Failing
from coldproof.harness.judgement.vectors import nearest, same_vectors
from coldproof.harness.schema.case import Reproduction
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.workload.steps import Workload, all_changes


class Observe(Protocol):
    """Runs a workload on an engine and judges it."""

    def __call__(self, engine: CheckedEngine, workload: Workload, nonce: str | None = None) -> Judgement:
        """Return the judgement. Without `nonce`, use a new one. Raises EngineError if there is no engine."""


class Confirmed(msgspec.Struct, frozen=True):
    """The result of confirming a counterexample: the judgement to report, its class, and the reproduction rates."""

    judgement: Judgement
    failure_class: FailureClass
    reproduction: Reproduction
    history_dependent: bool
    replays: tuple[Judgement, ...] = ()  # the replays
    caching_off: tuple[Judgement, ...] = ()  # the replays with prefix caching off


def confirm(
    failing: Failing,
    *,
    observe: Observe,
    fresh: CheckedEngine | None,
    fresh_oracle: EngineOracle | None,
    control: CheckedEngine | None,
    running: CheckedEngine | None,
    replays: int,
    rule: Rule = EXACT,
    across: str | None = None,
) -> Confirmed:
    """Replay a counterexample on the given engines, the `control` only if it has what the workload restarts.

    `fresh`: an engine that has run nothing. `running`: used without one, the engine on which it failed, such as an
    attached server; new nonces keep the replays from hitting blocks of the first run. `control`: an engine with prefix
    caching off. `across`: the name of the other engine whose answers are the oracle. If a cold engine of the tested
    kind differs from it as well, the cache is not the cause, and one of the two engines is wrong.
    A replay failed if one of the checkers that found the failure has a finding there too.
    """
    same = failing.judgement.history.nonce
    if control is not None and not has_what_steps_need(failing.workload, control):
        control = None
    agrees, replayed, note = None, [], "no fresh engine could be started"
    try:
        agrees, doubt = (fresh_answer_agrees(failing, fresh_oracle, rule) if fresh_oracle else None), ""
    except OracleError as problem:
        doubt = str(problem)
    if running is not None and fresh is None:
        replayed = replay(failing.workload, running, observe, replays)
    if fresh is not None:
        note = doubt
        # A second tier may ignore salts: it may hold blocks of the oracle's question under the same tokens.
        untouched = fresh_oracle is None or (fresh_oracle.salted and not failing.judgement.history.shape.second_tier)
        replayed = replay(failing.workload, fresh, observe, replays, nonce=same if untouched else None)
    controlled = replay(failing.workload, control, observe, replays, nonce=same) if control is not None else []
    off = [j for j in controlled if not only_reused_kv(j.history, j.findings)]
    if controlled and not off:
        control = None
    failed = [j for j in replayed if fails_alike(j, failing.judgement)]
    failed_off = [j for j in off if any(f.checker in WITHOUT_CACHE for f in j.findings)]
    # Under the old nonce, an engine that ignores salts hits blocks of the oracle's question. Prefer a new nonce.
    best = next((j for j in failed if j.history.nonce != same), failed[0]) if failed else failing.judgement
    apart = across is not None and agrees is False
    if apart:
        said = f"Without any cache, the engine also differs from {across} on this prompt: one of the two is wrong."
        note = f"{note}. {said}" if note else said
    not_the_cache = (bool(failed_off) or apart) and best.worst().checker in (*OF_ANSWERS, "liveness")
    if not not_the_cache and needs_cache(replayed, off) and had_no_hit(best.worst()):
        wrong = best.worst()
        found = tuple(with_wrong_count(one) if one is wrong else one for one in best.findings)
        best = msgspec.structs.replace(best, findings=found)
    return Confirmed(
        judgement=best,
        failure_class=FailureClass.NOT_THE_CACHE if not_the_cache else best.worst().failure_class,
        reproduction=Reproduction(
            while_shrinking_failed=failing.failed,
            while_shrinking_tries=failing.tries,
            fresh_failed=len(failed) if fresh is not None else None,
            fresh_tries=len(replayed) if fresh is not None else None,
            running_failed=len(failed) if fresh is None and running is not None else None,
            running_tries=len(replayed) if fresh is None and running is not None else None,
            caching_off_failed=len(failed_off) if control is not None else None,
            caching_off_tries=len(off) if control is not None else None,
            fresh_oracle_agrees=agrees if fresh is not None else None,
            note=note,
        ),
        history_dependent=bool(replayed) and not failed,
        replays=tuple(replayed),
        caching_off=tuple(off),
    )


def needs_cache(replayed: list[Judgement], off: list[Judgement]) -> bool:
    """Return whether answers without a hit were wrong in every replay, and in none of as many with caching off."""
    wrong = [j for j in replayed if j.findings and had_no_hit(j.worst())]
    return 0 < len(wrong) == len(replayed) <= len(off) and not any(j.findings for j in off)


def fails_alike(replayed: Judgement, found: Judgement) -> bool:
    """Return whether a checker that found something has a finding in a replay as well."""
    return bool({f.checker for f in found.findings} & {f.checker for f in replayed.findings})


def has_what_steps_need(workload: Workload, engine: CheckedEngine) -> bool:
    """Return whether an engine has what each step of a workload is performed on."""
    needed = (capability for change in all_changes(workload) for capability in change.needs())
    return all(engine.capabilities[capability].present for capability in needed)


def fresh_answer_agrees(failing: Failing, oracle: EngineOracle, rule: Rule = EXACT) -> bool | None:
    """Return whether a fresh engine gives the oracle's cold answer to the failing prompt, according to the rule.

    Return None if the failing request has no cold answer, or has several answers, which hit one another, or if all its
    weights are others than those with which the fresh engine was started.
    """
    outcome = failing_outcome(failing.judgement)
    if outcome is None or outcome.options.answers > 1:
        return None
    expected = closest(outcome, failing.judgement.answers)
    cold = nearest(outcome, failing.judgement.answers) if outcome.pooled else ()
    asked = [question(outcome, identity) for identity in outcome.identities if identity.weights is None]
    if not asked:
        return None
    if outcome.options.pooled is not None:
        return any(same_vectors(oracle.ask_without_memo(q).pooled or (), cold, rule) for q in asked)
    return any(not counts(expected, oracle.ask_without_memo(q).ids, rule) for q in asked)


def failing_outcome(judgement: Judgement) -> Outcome | None:
    """Return the request of the worst finding, if its answer can be compared with a cold one."""
    number = judgement.worst().request
    return next((o for o in comparable_outcomes(judgement.history) if o.request == number), None)


def replay(
    workload: Workload, engine: CheckedEngine, observe: Observe, times: int, *, nonce: str | None = None
) -> list[Judgement]:
    """Run a workload `times` times or until the engine is lost: first under `nonce`, then under new nonces.

    Give `nonce` only for an engine that has not seen its prompts.
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
