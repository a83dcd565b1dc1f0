"""The verdicts that a run may give, what each means, and the kinds of failure."""

from __future__ import annotations

import enum


class Verdict(enum.StrEnum):
    """The verdict of a run about one requirement, from best to worst."""

    CONFORMS = "CONFORMS"
    UNSUPPORTED = "UNSUPPORTED"
    KNOWN_ISSUE = "KNOWN ISSUE"
    NOT_EXERCISED = "NOT EXERCISED"
    INCONCLUSIVE = "INCONCLUSIVE"
    ERROR = "ERROR"
    VIOLATED = "VIOLATED"


VERDICT_MEANING = {
    Verdict.CONFORMS: "Exercised, with the required evidence, and no counterexample found but remarks.",
    Verdict.UNSUPPORTED: "The engine or this way of reaching it lacks something that the requirement needs.",
    Verdict.KNOWN_ISSUE: "Violated, and waived by name in the known-issues file.",
    Verdict.NOT_EXERCISED: "Nothing failed, but the risky path was not shown to have been taken: no pass.",
    Verdict.INCONCLUSIVE: (
        "The engine is not deterministic enough here to tell, its answers could show no fault, or what failed did not "
        "reproduce or could not be replayed."
    ),
    Verdict.ERROR: "The harness or the set-up broke; nothing is said about the engine.",
    Verdict.VIOLATED: "A counterexample was found and confirmed as the case says.",
}


def worst(verdicts: list[Verdict]) -> Verdict:
    """The verdict of several cells together: the last of them in declaration order; nothing at all was not exercised.

    A requirement that some cell supports is not called unsupported because of another that does not.
    """
    supported = [v for v in verdicts if v is not Verdict.UNSUPPORTED]
    if not supported:
        return Verdict.UNSUPPORTED if verdicts else Verdict.NOT_EXERCISED
    return max(supported, key=list(Verdict).index)


class FailureClass(enum.StrEnum):
    """The kind of a failure. A match with a known wrong answer is the strongest evidence."""

    STALE_STATE = "stale state"
    CROSS_REQUEST = "cross-request"
    CORRUPT = "corrupt"
    NOT_THE_CACHE = "not the cache"
    ACCOUNTING = "accounting"
    LOST_REUSE = "lost reuse"
    HANG = "hang"
    CRASH = "crash"
    API = "api"
