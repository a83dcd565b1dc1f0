"""What follows from the controls: what a failure needs, what it does not, and the kind of fault that points at. Pure.

A single failure without a thing proves that the failure does not need it. That it needs it is only as sure as the case
is steady: it is said where so many failures with it and none without it would be unlikely, were it of no account
(Fisher's exact test, one-sided). Everything else is not told, and said to be so.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from harness.diagnosis.controls import (
    ADAPTERS,
    BEFORE,
    BEGINNING,
    HANG_UP,
    NAME,
    NEAR_PROMPTS,
    NEAR_SALTS,
    PATH,
    RESET,
    SALTS,
    SURFACE,
    SWITCHED,
    TOGETHER,
)
from harness.variant import CACHING, CHUNKS, POOL, TIER
from reports.schema import ControlRow, Diagnosis, FailureClass, Strength
from reports.text import listed

UNLIKELY = 0.05  # three failures of three with it and none of three without it come to just that
MOST_RUNS = 12
COUNTED = (FailureClass.ACCOUNTING, FailureClass.LOST_REUSE)


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the case beside its controls."""

    failure_class: FailureClass
    failed: int
    tries: int
    wrong_tokens: bool
    preempted: bool = False


def told(failed: int, tries: int, *, without_failed: int, without_tries: int) -> Strength:
    """What a control's runs tell, beside those of the case as it is."""
    if without_failed:
        return Strength.NOT_NEEDED
    if not without_tries or chance(failed, tries, without_tries) > UNLIKELY:
        return Strength.NOT_TOLD
    return Strength.NEEDED


def runs_needed(failed: int, tries: int) -> int:
    """The fewest runs of a control that tell something if none fails; at most as many as one has patience for."""
    return next((n for n in range(1, MOST_RUNS) if chance(failed, tries, n) <= UNLIKELY), MOST_RUNS)


def chance(failed: int, tries: int, without_tries: int) -> float:
    """That all of so many failures fall to the case as it is, were they as likely without the thing removed."""
    return math.comb(tries, failed) / math.comb(tries + without_tries, failed)


def conclude(rows: list[ControlRow], facts: Facts) -> Diagnosis:
    """The rows with what each tells, and the whole in words."""
    rows = [
        msgspec.structs.replace(
            row,
            tells=told(facts.failed, facts.tries, without_failed=row.failed, without_tries=row.tries - row.otherwise),
        )
        for row in rows
    ]
    tells = {row.removes: row.tells for row in rows}
    mechanism = next((name for name, holds in MECHANISMS if holds(tells, facts)), "")
    return Diagnosis(conclusion=in_words(rows, facts, mechanism), mechanism=mechanism, controls=rows)


def in_words(rows: list[ControlRow], facts: Facts, mechanism: str) -> str:
    """One paragraph that says no more than the rows do."""
    what = "The wrong answer" if facts.wrong_tokens else "The failure"
    needed = [row.removes for row in rows if row.tells is Strength.NEEDED]
    spared = [row.removes for row in rows if row.tells is Strength.NOT_NEEDED]
    open_ones = [row.removes for row in rows if row.tells is Strength.NOT_TOLD]
    said = [f"{what} came in {facts.failed} of {facts.tries} runs of the case as it is."]
    if needed:
        these = "it" if len(needed) == 1 else "any one of these"
        said.append(f"It needs {listed(needed)}: without {these} it never came.")
    if spared:
        said.append(f"It does not need {listed(spared)}: it came without.")
    if open_ones:
        said.append(f"Not told: {listed(open_ones)}.")
    said.append(f"This points at {mechanism}." if mechanism else "No kind of fault is singled out by this.")
    return " ".join(said)


def needs(tells: dict[str, Strength], removes: str) -> bool:
    """Whether the failure is shown to need a thing."""
    return tells.get(removes) is Strength.NEEDED


def spares(tells: dict[str, Strength], removes: str) -> bool:
    """Whether the failure is shown not to need a thing."""
    return tells.get(removes) is Strength.NOT_NEEDED


def outlive(tells: dict[str, Strength]) -> bool:
    """Whether it comes without the cache, but not without what was before."""
    return spares(tells, CACHING) and needs(tells, BEFORE)


def counted(facts: Facts) -> bool:
    """Whether only counts are wrong."""
    return facts.failure_class in COUNTED and not facts.wrong_tokens


def found_rightly(tells: dict[str, Strength], _facts: Facts) -> bool:
    """Whether a cached beginning is needed, and no nearly equal prompt, other adapter or salt that wrote it."""
    others = (NEAR_PROMPTS, SALTS, ADAPTERS, NAME)
    return needs(tells, CACHING) and needs(tells, BEGINNING) and not any(needs(tells, other) for other in others)


Rule = Callable[[dict[str, Strength], Facts], bool]
# The first that holds: from what takes part in few cases to what takes part in most.
MECHANISMS: tuple[tuple[str, Rule], ...] = (
    (
        "weights or state that outlive their time, not the prefix cache",
        lambda t, _: outlive(t),
    ),
    ("something else than the prefix cache", lambda t, _: spares(t, CACHING)),
    ("the second tier: what is stored in it or loaded from it", lambda t, _: needs(t, TIER)),
    ("what a client that hangs up leaves behind", lambda t, _: needs(t, HANG_UP)),
    ("a reset that leaves something behind", lambda t, _: needs(t, RESET)),
    ("preemption and what follows it", lambda t, f: needs(t, POOL) and f.preempted),
    ("eviction, or a pool that does not give back what it holds", lambda t, _: needs(t, POOL)),
    ("a cache that does not notice an adapter being switched for all", lambda t, _: needs(t, SWITCHED)),
    ("a cache key that knows adapters by name and path", lambda t, _: needs(t, NAME) and needs(t, PATH)),
    ("a cache key that knows adapters by their names", lambda t, _: needs(t, NAME)),
    ("a cache key that misses a part of the salt", lambda t, _: needs(t, NEAR_SALTS)),
    ("a cache key without the salt", lambda t, _: needs(t, SALTS)),
    ("a cache key that misses some of the tokens", lambda t, _: needs(t, NEAR_PROMPTS)),
    ("how more than plain requests are served on a hit", lambda t, _: needs(t, SURFACE)),
    ("how hits are found or counted, not what they hold", lambda _, f: counted(f)),
    ("a cache key without the adapter, or of another one", lambda t, _: needs(t, ADAPTERS)),
    ("prefill in chunks: a block that is found before it is written", lambda t, _: needs(t, CHUNKS)),
    ("requests side by side: a block that two of them use at once", lambda t, _: needs(t, TOGETHER)),
    ("a block that holds other KV than its key says", found_rightly),
)
