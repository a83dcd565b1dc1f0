"""Confirms what does not fail alone: a workload as it was found, or with what the engine had run before it.

Minimising goes on with an engine that carries whatever the runs before have done to it, so what is small enough to
fail there need not fail on a fresh one. What was found first met the least of that; and where even this fails only
after others, the same workloads under the same nonces, in the same order, bring a fresh engine to where it failed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from adapters.base import EngineError
from adapters.checked import CheckedEngine
from harness.confirm import Confirmed, Observe
from harness.history import History
from harness.judge import Judgement
from harness.requirement import Failing, Ran
from reports.schema import FailureClass

AS_FOUND = "What it was reduced to did not fail on a fresh engine: this is a larger workload that does."


class Rerun(Protocol):
    """Runs a workload on an engine under the nonce that it had; nobody judges it."""

    def __call__(self, engine: CheckedEngine, ran: Ran) -> History:
        """What happened. Raises EngineError when the engine cannot be had."""


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
    """What becomes of a counterexample that did not fail on a fresh engine, in so many seconds more.

    `found`: the first and the smallest one of the trial, as they were found. What is tried last is the first of them
    with what had run before it. Each try is given an engine that was just started.
    """
    until = time.monotonic() + seconds
    tried = [confirmed.judgement.history.workload]
    for failing in found:
        fresh = start() if failing.workload not in tried and time.monotonic() < until else None
        if fresh is not None:
            larger = confirm(failing, fresh)
            if not larger.history_dependent:
                return noted(larger, AS_FOUND)
        tried.append(failing.workload)
    return after_earlier(confirmed, found[0], start, rerun, observe, control, until)


def after_earlier(
    confirmed: Confirmed,
    failing: Failing,
    start: Callable[[], CheckedEngine | None],
    rerun: Rerun,
    observe: Observe,
    control: CheckedEngine | None,
    until: float,
) -> Confirmed:
    """The same with what had run before it, halved for as long as there is time."""

    def fails_after(ran: Sequence[Ran]) -> Judgement | None:
        fresh = start() if ran and time.monotonic() < until else None
        return None if fresh is None else last_of(ran, failing, fresh, rerun, observe)

    kept = affordable(failing.earlier, until - time.monotonic())
    seen = fails_after(kept)
    if seen is None:
        return confirmed
    smaller = True
    while smaller and len(kept) > 1:
        smaller = False
        for half in (kept[len(kept) // 2 :], kept[: len(kept) // 2]):
            again = fails_after(half)
            if again is not None:
                kept, seen, smaller = half, again, True
                break
    off = last_of(kept, failing, control, rerun, observe) if control is not None else None
    not_the_cache = off is not None and off.worst().checker in ("tokens", "liveness")
    reproduction = msgspec.structs.replace(
        confirmed.reproduction,
        while_shrinking_failed=failing.failed,
        while_shrinking_tries=failing.tries,
        workloads_before=len(kept),
    )
    needed = "the workload" if len(kept) == 1 else f"the {len(kept)} workloads"
    made = Confirmed(
        judgement=seen,
        failure_class=FailureClass.NOT_THE_CACHE if not_the_cache else seen.worst().failure_class,
        reproduction=reproduction,
        history_dependent=True,
    )
    return noted(made, f"On a fresh engine it failed after {needed} that had run before it, which events.ndjson holds.")


def last_of(
    ran: Sequence[Ran], failing: Failing, engine: CheckedEngine, rerun: Rerun, observe: Observe
) -> Judgement | None:
    """How a workload fails behind others, under its own nonce and in the way that it failed; None where it does not."""
    try:
        if any(rerun(engine, one).engine_lost is not None for one in ran):
            return None
        judgement = observe(engine, failing.workload, failing.judgement.history.nonce)
    except EngineError:
        return None
    checker = failing.judgement.worst().checker
    return judgement if any(finding.checker == checker for finding in judgement.findings) else None


def affordable(ran: Sequence[Ran], seconds: float) -> tuple[Ran, ...]:
    """The latest of them that can be run once more in so many seconds, by the time that they took."""
    kept: list[Ran] = []
    for one in reversed(ran):
        seconds -= one.seconds
        if seconds < 0:
            break
        kept.insert(0, one)
    return tuple(kept)


def noted(confirmed: Confirmed, words: str) -> Confirmed:
    """The same with some words more about how it reproduced."""
    note = " ".join(filter(None, [confirmed.reproduction.note, words]))
    return msgspec.structs.replace(confirmed, reproduction=msgspec.structs.replace(confirmed.reproduction, note=note))
