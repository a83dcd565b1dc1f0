"""Brings the counterexamples of one cause together: one fault that forty examples show is one finding with a count.

Invariant: every case is in exactly one cause, and a fingerprint holds nothing of one run, cell, requirement or engine,
so that tomorrow's run gives the same fault the same one.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence

from reports.schema import Case, Cause, Results
from reports.text import listed, many

_DIGITS = 8  # short enough to be read out; the chance that two of a thousand signatures share one is 1 : 8600


def fingerprint(signature: str) -> str:
    """A signature in eight hexadecimal digits."""
    return hashlib.sha256(signature.encode("utf-8", "replace")).hexdigest()[:_DIGITS]


def causes(cases: Sequence[Case]) -> list[Cause]:
    """The cases by signature: those that somebody must look at first, then those that are waived whole, else as found.

    A signature says the failure's class and what happened, not where in the engine the fault is. So two bugs of one
    shape look like one cause, and one bug that shows in two ways (stale state here, a crash there) like two. Nothing is
    lost by it: a cause lists all its cases, and each keeps its own section, file and verdict.
    """
    alike: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        alike[case.signature].append(case)
    return sorted((_cause(same) for same in alike.values()), key=lambda cause: cause.waived == len(cause.cases))


def _cause(cases: list[Case]) -> Cause:
    first = cases[0]
    return Cause(
        fingerprint=fingerprint(first.signature),
        signature=first.signature,
        sentence=first.sentence,
        requirements=sorted({case.requirement for case in cases}),
        cells=sorted({case.cell for case in cases}),
        cases=[case.id for case in cases],
        waived=sum(case.known_issue is not None for case in cases),
    )


def causes_of(results: Results) -> list[Cause]:
    """The causes of a run; of one that was stored before runs told them, worked out from its cases."""
    return results.causes or causes(results.cases)


def counted(found: Sequence[Cause]) -> str:
    """How many counterexamples of how many causes, in words; empty where there are none."""
    if not found:
        return ""
    cases, waived = sum(len(cause.cases) for cause in found), sum(cause.waived for cause in found)
    said = f"{many(cases, 'counterexample')} of {many(len(found), 'cause')}"
    return f"{said}, {waived} waived" if waived else said


def seen_under(cause: Cause) -> str:
    """Where and how often one cause showed, in words."""
    where = f"{listed(cause.requirements)} in {many(len(cause.cells), 'cell')}"
    return f"{where}, {many(len(cause.cases), 'counterexample')}, {waived_in_words(cause)}"


def waived_in_words(cause: Cause) -> str:
    """Whether the known issues cover a cause: whole, in part or not at all."""
    if not cause.waived:
        return "not waived"
    return "waived" if cause.waived == len(cause.cases) else f"{cause.waived} of {len(cause.cases)} waived"
