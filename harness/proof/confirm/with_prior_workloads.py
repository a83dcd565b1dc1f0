"""Confirms a counterexample that passed on a fresh engine: as found, with its own tokens, or after prior workloads.

Minimising reuses an engine whose state earlier runs may have changed, so that its result may not fail on a fresh
engine. The first form of the counterexample had the fewest prior runs. If it fails only where two tokens are equal by
chance, it fails again under the same nonce. If it fails only after prior workloads, these are run on a fresh engine
with the same nonces and in the same order. Where the engine reports whose KV was read, the workload that wrote it is
tried first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.protocol.engine import EngineError
from coldproof.harness.history.provenance import read_kv_of_run
from coldproof.harness.history.records import History
from coldproof.harness.judgement.criteria import OF_ANSWERS
from coldproof.harness.judgement.judge import Judgement
from coldproof.harness.judgement.no_hits import only_reused_kv
from coldproof.harness.judgement.trial import Failing, Ran
from coldproof.harness.proof.confirm.confirm import Confirmed, Observe
from coldproof.harness.schema.verdict import FailureClass

AS_FOUND = "The minimised workload did not fail on a fresh engine; this larger workload does."
OWN_TOKENS = "On a fresh engine it failed with the tokens of the run that found it, and not with others."


# Runs a prior workload on an engine under its own nonce, without a judgement. Raises EngineError without an engine.
Rerun = Callable[[CheckedEngine, Ran], History]


def confirm_further(
    confirmed: Confirmed,
    found: Sequence[Failing],
    *,
    start: Callable[[], CheckedEngine | None],
    confirm: Callable[[Failing, CheckedEngine], Confirmed],
    rerun: Rerun,
    observe: Observe,
    control: CheckedEngine | None,
    seconds: float,
) -> Confirmed:
    """Try for `seconds` more seconds to confirm a counterexample that did not fail on a fresh engine.

    `found`: the first and the smallest counterexample of the trial. The first is replayed after the prior workloads
    whose KV it read, if any; then each alone on a fresh engine; then the minimised one with its own tokens; at last,
    the first one after its prior workloads. Return `confirmed` if all pass.
    """
    until = time.monotonic() + seconds
    prior = PriorWorkloads(confirmed, found[0], start, rerun, observe, control, until)
    after_writers = prior.confirm_after(prior.writers())
    if after_writers is not None:
        return after_writers
    tried = [confirmed.judgement.history.workload]
    for failing in found:
        fresh = start() if failing.workload not in tried and time.monotonic() < until else None
        if fresh is not None:
            larger = confirm(failing, fresh)
            if not larger.history_dependent:
                return with_note(larger, AS_FOUND)
        tried.append(failing.workload)
    with_own_tokens = confirm_with_own_tokens(confirmed, start, rerun, observe, until)
    return with_own_tokens or prior.confirm_after(prior.affordable()) or confirmed


def confirm_with_own_tokens(
    confirmed: Confirmed, start: Callable[[], CheckedEngine | None], rerun: Rerun, observe: Observe, until: float
) -> Confirmed | None:
    """Replay a counterexample once on a fresh engine under the nonce with which it failed, unless a replay did so.

    Return None if it passes.
    """
    found, reproduction = confirmed.judgement, confirmed.reproduction
    replayed = found.history.nonce in {replay.history.nonce for replay in confirmed.replays}
    fresh = None if replayed or time.monotonic() >= until else start()
    failing = Failing(found.history.workload, found, failed=1, tries=1)
    seen = None if fresh is None else fails_after_prior((), failing, fresh, rerun, observe)
    if seen is None:
        return None
    again = msgspec.structs.replace(reproduction, fresh_failed=1, fresh_tries=(reproduction.fresh_tries or 0) + 1)
    made = msgspec.structs.replace(confirmed, judgement=seen, reproduction=again, history_dependent=False)
    return with_note(made, OWN_TOKENS)


class PriorWorkloads(msgspec.Struct, frozen=True):
    """A counterexample with its prior workloads, and what is needed to run them again on fresh engines."""

    confirmed: Confirmed
    failing: Failing
    start: Callable[[], CheckedEngine | None]
    rerun: Rerun
    observe: Observe
    control: CheckedEngine | None
    until: float

    def writers(self) -> tuple[Ran, ...]:
        """Return the prior workloads that wrote KV which the counterexample read."""
        history = self.failing.judgement.history
        return tuple(ran for ran in self.failing.earlier if read_kv_of_run(history, ran.nonce))

    def affordable(self) -> tuple[Ran, ...]:
        """Return the latest prior workloads that can be run again in the time left."""
        return affordable(self.failing.earlier, self.until - time.monotonic())

    def confirm_after(self, ran: tuple[Ran, ...]) -> Confirmed | None:
        """Replay the counterexample after prior workloads, halved as long as it fails and time is left.

        Return None if it passes.
        """
        found = self.fails_after(ran)
        if found is None:
            return None
        kept, seen = self.halved(ran, found)
        off = self.replay_after(kept, self.control) if self.control is not None else None
        if off is not None and only_reused_kv(off.history, off.findings):
            off = None
        not_the_cache = off is not None and off.worst().checker in (*OF_ANSWERS, "liveness")
        reproduction = msgspec.structs.replace(
            self.confirmed.reproduction,
            while_shrinking_failed=self.failing.failed,
            while_shrinking_tries=self.failing.tries,
            workloads_before=len(kept),
        )
        needed = "one prior workload" if len(kept) == 1 else f"{len(kept)} prior workloads"
        made = Confirmed(
            judgement=seen,
            failure_class=FailureClass.NOT_THE_CACHE if not_the_cache else seen.worst().failure_class,
            reproduction=reproduction,
            history_dependent=True,
        )
        return with_note(made, f"On a fresh engine it failed after {needed}, recorded in events.ndjson.")

    def halved(self, ran: tuple[Ran, ...], seen: Judgement) -> tuple[tuple[Ran, ...], Judgement]:
        """Return the fewest workloads found by halving `ran` after which it still fails, and how it fails then."""
        while len(ran) > 1:
            halves = (ran[len(ran) // 2 :], ran[: len(ran) // 2])
            smaller = next(((half, found) for half in halves if (found := self.fails_after(half)) is not None), None)
            if smaller is None:
                break
            ran, seen = smaller
        return ran, seen

    def fails_after(self, ran: Sequence[Ran]) -> Judgement | None:
        """Replay it on a fresh engine after prior workloads; None if it passes or there is no time or engine."""
        fresh = self.start() if ran and time.monotonic() < self.until else None
        return None if fresh is None else self.replay_after(ran, fresh)

    def replay_after(self, ran: Sequence[Ran], engine: CheckedEngine) -> Judgement | None:
        """Replay it on an engine after prior workloads; None if it passes."""
        return fails_after_prior(ran, self.failing, engine, self.rerun, self.observe)


def fails_after_prior(
    ran: Sequence[Ran], failing: Failing, engine: CheckedEngine, rerun: Rerun, observe: Observe
) -> Judgement | None:
    """Run prior workloads and then a counterexample, under their own nonces.

    Return the judgement if it fails by the same checker, else None.
    """
    try:
        if any(rerun(engine, one).engine_lost is not None for one in ran):
            return None
        judgement = observe(engine, failing.workload, failing.judgement.history.nonce)
    except EngineError:
        return None
    checker = failing.judgement.worst().checker
    return judgement if any(finding.checker == checker for finding in judgement.findings) else None


def affordable(ran: Sequence[Ran], seconds: float) -> tuple[Ran, ...]:
    """Return the latest workloads that can be run again in `seconds` seconds, according to the time that they took."""
    kept: list[Ran] = []
    for one in reversed(ran):
        seconds -= one.seconds
        if seconds < 0:
            break
        kept.insert(0, one)
    return tuple(kept)


def with_note(confirmed: Confirmed, words: str) -> Confirmed:
    """Return `confirmed` with `words` added to the note about its reproduction."""
    note = " ".join(filter(None, [confirmed.reproduction.note, words]))
    return msgspec.structs.replace(confirmed, reproduction=msgspec.structs.replace(confirmed.reproduction, note=note))
