"""Which branches a script takes for a case, and how it says whether the bug is there: what no feature registers.

See `registry.py` for what features register.
"""

from __future__ import annotations

from coldproof.adapters.protocol.restarts import EngineChange
from coldproof.adapters.spec.script import given
from coldproof.harness.case.reproducer.kit.checks import (
    counted_too_many,
    is_out_of_bounds,
    is_wrong,
    nothing_to_compare,
)
from coldproof.harness.case.reproducer.registry import Call, ScriptCase, flag, script_check, true_flags
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.workload.steps import Burst, Restart, Route, Segment, SetAdapter

# Each flag of engines' clients, as it is where nothing says that a case uses it.
GIVEN = {name: False for name, kind in given.__annotations__.items() if kind == "bool"}
# Classes that mean a wrong count if no token is wrong. All other classes concern the answer.
CACHED_COUNT_FAILURES = (FailureClass.ACCOUNTING, FailureClass.LOST_REUSE, FailureClass.STALE_STATE)
ENDED = "process has ended"  # in the error of a request whose engine did
# More than the tokens of one answer is compared.
COMPARED = ("NOISY", "MIDWAY_ADAPTERS", "ABORTS")
# Not just answers, of which one call waits for all.
ALONE = ("ABORTS", "FAILS", "HANGS", "CRASHES", "LATE", "MEANWHILE")


def features(about: ScriptCase) -> dict[str, bool]:
    """Return each flag of a case: those of this file, and those that features have registered."""
    requests, segments, changes = about.requests, about.segments, about.changes
    case, row = about.case, about.failing
    bursts = [step for step in about.workload.steps if isinstance(step, Burst)]
    midway = [change for burst in bursts if burst.meanwhile for change in burst.meanwhile.changes]
    restarts = [step.before for step in about.workload.steps if isinstance(step, Restart)]
    noisy = case.noise_nats is not None
    found = GIVEN | {
        "GENERATED": about.generated,
        "ADAPTED": any(isinstance(change, SetAdapter) for change in changes),
        "OWN_ADAPTERS": any("path" in recipe for recipe in case.recipes.values()),
        "SWITCHES": any(isinstance(one, SetAdapter) and one.route is Route.SWITCH for one in changes),
        "TOGETHER": any(len(burst.requests) > 1 or burst.meanwhile for burst in bursts),
        "MEANWHILE": bool(midway),
        "MIDWAY_ADAPTERS": any(isinstance(change, SetAdapter) for change in midway),
        "LATE": any(request.offset_ms for request in requests),
        "ABORTS": any(request.abort for request in requests),
        "CONTINUES": any(request.prompt.continues is not None for request in requests),
        "CUTS": any(request.prompt.cuts_history for request in requests),
        "CHATS": any(request.chat for request in requests),
        "SALTS": any(request.salt is not None for request in requests),
        "EXTRA": noisy or any(request.options != request.options.plain() or request.priority for request in requests),
        "BOUNDED": counts_of(about) is not None,
        "HANGS": case.failure_class is FailureClass.HANG,
        "CRASHES": may_have_ended(about),
        "DIES": row is not None and ENDED in row.error,
        "EDITS": any(not (one.changed is None is one.swapped) for one in segments),
        "FOUR_BITS": "-q4.gguf" in about.command,
        "RESTARTS": bool(restarts),
        "REMADE": EngineChange.WEIGHTS in restarts and about.generated,
        **dict.fromkeys(("NOISY", "WHOLE", "SCORES", "ENDS"), noisy),
    }
    found |= {name: on or found.get(name, False) for name, on in true_flags(about).items()}
    found["FAILURE"] = found["HANGS"] or found["CRASHES"] or (row is not None and bool(row.error))
    failed = any(one.error for one in case.requests) or any(one.abort for one in requests)
    found["FAILS"] = found["FAILS"] or found["FAILURE"] or failed
    return found


def never_true(about: ScriptCase) -> dict[str, bool]:
    """Return conditions in our modules that never hold in a case, all as False: what they lead to is left out."""
    found = {
        "segment.rows": any(segment.rows for segment in about.segments),
        "segment.image": any(segment.image for segment in about.segments),
        "segment.swapped is not None": any(segment.swapped is not None for segment in about.segments),
        "readable": any(segment.image for segment in about.segments),
        "name == 'lora_adapters'": bool(about.case.recipes),
    }
    return {condition: holds for condition, holds in found.items() if not holds}


def has_content(segment: Segment) -> bool:
    """Return whether a segment has embedding rows, or is an image."""
    return bool(segment.rows or segment.image)


def may_have_ended(about: ScriptCase) -> bool:
    """Return whether the engine may have ended in a case. A crash that also happens without a cache is of the class
    NOT_THE_CACHE; its failing request has an error in place of an answer.
    """
    failure, row = about.case.failure_class, about.failing
    return failure is FailureClass.CRASH or (
        failure is FailureClass.NOT_THE_CACHE and row is not None and bool(row.error)
    )


def most_counted(about: ScriptCase) -> int | None:
    """Return how many tokens the engine may have counted as hits, in a case about its counter: no request reports a
    count of its own. None for other cases.
    """
    case = about.case
    reported = any(row.cached_tokens is not None for row in case.requests)
    about_counter = case.failing_request is None and case.failure_class is FailureClass.ACCOUNTING
    if not about_counter or reported or case.block_size is None:
        return None
    return sum((row.cached_at_most or 0) // case.block_size * case.block_size for row in case.requests)


@flag("COUNTED", method="hit_count")
def is_about_the_counter(about: ScriptCase) -> bool:
    """Return whether a case is about the engine's counter of hits."""
    return most_counted(about) is not None


def counts_of(about: ScriptCase) -> tuple[int, int] | None:
    """Return how many tokens of the failing request may have been cached, if that is what is wrong with it.

    Lost reuse is too few cached tokens. More than allowed is not that bug, and some engines count an upper bound.
    """
    case, row = about.case, about.failing
    of_count = case.first_difference is None and case.failure_class in CACHED_COUNT_FAILURES
    if row is None or row.cached_tokens is None or not of_count:
        return None
    most = row.prompt_tokens if case.failure_class is FailureClass.LOST_REUSE else row.cached_at_most
    return None if most is None else (row.cached_at_least or 0, most)


@script_check(300, flag="COUNTED")
def by_counter(about: ScriptCase) -> Call | None:
    """Return the check of a case about the engine's counter of hits."""
    return Call(counted_too_many, (most_counted(about),))


@script_check(600)
def by_nothing(about: ScriptCase) -> Call | None:
    """Return the check of a case whose failure is in no single request, and that no other check knows."""
    return Call(nothing_to_compare) if about.case.failing_request is None else None


@script_check(700)
def by_bounds(about: ScriptCase) -> Call | None:
    """Return the check of a case about a cached-token count."""
    bounds = counts_of(about)
    return None if bounds is None else Call(is_out_of_bounds, (about.case.failing_request, *bounds))


@script_check(800)
def by_answer(about: ScriptCase) -> Call | None:
    """Return the check of every other case: the answer of its failing request."""
    return Call(is_wrong, (about.case.failing_request,))
