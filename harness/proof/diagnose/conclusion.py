"""Concludes from the controls what a failure needs, what it does not need, and which kind of fault is likely. Pure.

A single failure without a factor proves that the failure does not need it. That it needs a factor follows only
statistically: if the observed failures with the factor, and none without it, are unlikely under the assumption that the
factor does not matter (Fisher's exact test, one-sided). Everything else is undetermined.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import msgspec

from coldproof.adapters.spec.cell import CACHING, CHUNKS, POOL, TIER
from coldproof.harness.proof.diagnose.controls import (
    ADAPTERS,
    CONCURRENT,
    DISCONNECT,
    NAME,
    ONE_SIDE_FIRST,
    OPTIONS,
    OTHER_REQUESTS,
    PATH,
    RESET,
    SALTS,
    SHARED_PREFIX,
    SIMILAR_PROMPTS,
    SIMILAR_SALTS,
    SWITCHED,
)
from coldproof.harness.schema.case import ControlRow, Diagnosis, Strength
from coldproof.harness.schema.verdict import FailureClass
from coldproof.reports.format.text import listed

UNLIKELY = 0.05  # reached by three failures of three with the factor and none of three without it
MOST_RUNS = 12
COUNTED = (FailureClass.ACCOUNTING, FailureClass.LOST_REUSE)


class ControlFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about the case besides its controls."""

    failure_class: FailureClass
    failed: int
    tries: int
    wrong_tokens: bool
    preempted: bool = False
    twins: bool = False  # it is a difference between two implementations of one part
    other_tokens: bool = False  # a block that was hit holds the KV of other tokens, from the first one that differs


def strength_of(failed: int, tries: int, *, without_failed: int, without_tries: int) -> Strength:
    """Return what a control's runs show, compared with the unmodified runs of the case."""
    if without_failed:
        return Strength.NOT_NEEDED
    if not without_tries or chance(failed, tries, without_tries) > UNLIKELY:
        return Strength.UNDETERMINED
    return Strength.NEEDED


def runs_needed(failed: int, tries: int) -> int:
    """Return the fewest runs of a control that prove a need if none fails, at most MOST_RUNS."""
    return next((n for n in range(1, MOST_RUNS) if chance(failed, tries, n) <= UNLIKELY), MOST_RUNS)


def chance(failed: int, tries: int, without_tries: int) -> float:
    """Return the probability that all failures are among the unmodified runs if the factor does not matter."""
    return math.comb(tries, failed) / math.comb(tries + without_tries, failed)


def conclude(rows: list[ControlRow], facts: ControlFacts) -> Diagnosis:
    """Return the diagnosis: the rows with what each shows, the kind of fault, and the conclusion in words."""
    seen = functools.partial(strength_of, facts.failed, facts.tries)
    rows = [
        msgspec.structs.replace(row, tells=seen(without_failed=row.failed, without_tries=row.tries - row.otherwise))
        for row in rows
    ]
    tells = {row.removes: row.tells for row in rows}
    mechanism = next((name for name, holds in MECHANISMS if holds(tells, facts)), "")
    return Diagnosis(conclusion=describe(rows, facts, mechanism), mechanism=mechanism, controls=rows)


def describe(rows: list[ControlRow], facts: ControlFacts, mechanism: str) -> str:
    """Return the conclusion as one paragraph."""
    what = "The wrong answer" if facts.wrong_tokens else "The failure"
    needed = [row.removes for row in rows if row.tells is Strength.NEEDED]
    not_needed = [row.removes for row in rows if row.tells is Strength.NOT_NEEDED]
    undetermined = [row.removes for row in rows if row.tells is Strength.UNDETERMINED]
    said = [f"{what} occurred in {facts.failed} of {facts.tries} unmodified runs of the case."]
    if needed:
        these = "it" if len(needed) == 1 else "any one of these"
        said.append(f"It needs {listed(needed)}: without {these} it never occurred.")
    if not_needed:
        said.append(f"It does not need {listed(not_needed)}: it also occurred without.")
    if undetermined:
        said.append(f"Undetermined: {listed(undetermined)}.")
    said.append(f"The controls point at {mechanism}." if mechanism else "The controls do not identify a single cause.")
    return " ".join(said)


def needs(tells: dict[str, Strength], removes: str) -> bool:
    """Return whether the controls prove that the failure needs a factor."""
    return tells.get(removes) is Strength.NEEDED


def needs_no_cache(tells: dict[str, Strength]) -> bool:
    """Return whether the controls prove that the failure does not need prefix caching."""
    return tells.get(CACHING) is Strength.NOT_NEEDED


def is_wrong_content(tells: dict[str, Strength], _facts: ControlFacts) -> bool:
    """Return whether a cached prefix is needed, but no similar prompt, other adapter or salt that wrote it."""
    others = (SIMILAR_PROMPTS, SALTS, ADAPTERS, NAME)
    return needs(tells, CACHING) and needs(tells, SHARED_PREFIX) and not any(needs(tells, other) for other in others)


Rule = Callable[[dict[str, Strength], ControlFacts], bool]
# The first one that applies: those that rest on rare factors come first.
MECHANISMS: tuple[tuple[str, Rule], ...] = (
    ("one of two implementations of one part: they differ by design, or one of them is wrong", lambda _, f: f.twins),
    (
        "stale model weights or state outside of the prefix cache",
        lambda t, _: needs_no_cache(t) and needs(t, OTHER_REQUESTS),
    ),
    (
        "a cause outside of the prefix cache",
        lambda t, f: needs_no_cache(t) or f.failure_class is FailureClass.NOT_THE_CACHE,
    ),
    ("the second tier: what is stored in it or loaded from it", lambda t, _: needs(t, TIER)),
    ("the state that a client disconnect leaves behind", lambda t, _: needs(t, DISCONNECT)),
    (
        "KV of both contents: what is computed while a change has reached one side only",
        lambda t, _: needs(t, ONE_SIDE_FIRST),
    ),
    ("a cache reset that is incomplete", lambda t, _: needs(t, RESET)),
    ("preemption, or the resumption after it", lambda t, f: needs(t, POOL) and f.preempted),
    ("eviction, or a pool that does not free its blocks", lambda t, _: needs(t, POOL)),
    ("a cache that is not invalidated when an adapter is switched for all requests", lambda t, _: needs(t, SWITCHED)),
    ("a cache key that identifies adapters by name and path", lambda t, _: needs(t, NAME) and needs(t, PATH)),
    ("a cache key that identifies adapters by name", lambda t, _: needs(t, NAME)),
    ("a cache key that omits a part of the salt", lambda t, _: needs(t, SIMILAR_SALTS)),
    ("a cache key without the salt", lambda t, _: needs(t, SALTS)),
    (
        "a cache key that omits some of the tokens",
        lambda t, f: needs(t, SIMILAR_PROMPTS) or (needs(t, CACHING) and f.other_tokens),
    ),
    ("the handling of response options on a cache hit", lambda t, _: needs(t, OPTIONS)),
    (
        "the lookup or count of hits, not the block content",
        lambda _, f: f.failure_class in COUNTED and not f.wrong_tokens,
    ),
    ("a cache key without the adapter, or with another one", lambda t, _: needs(t, ADAPTERS)),
    ("chunked prefill: a block that is hit before it is written", lambda t, _: needs(t, CHUNKS)),
    ("concurrent requests: a block that two of them use at the same time", lambda t, _: needs(t, CONCURRENT)),
    ("a block whose content does not match its key", is_wrong_content),
)
