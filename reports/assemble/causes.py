"""Groups the counterexamples by cause: a fault that forty examples show is one finding with a count.

Invariant: every case is in exactly one cause. A fingerprint does not depend on run, cell, requirement or engine. Later
runs give the same fault the same fingerprint. It is that of the finding to which the cases belong, or of the signature.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence

from coldproof.harness.schema.case import Case
from coldproof.harness.schema.results import Cause
from coldproof.reports.format.text import many

_DIGITS = 8  # short enough to read out; two of 1,000 signatures collide with probability 1 : 8600


def fingerprint(signature: str) -> str:
    """Return a signature's hash in eight hexadecimal digits."""
    return hashlib.sha256(signature.encode("utf-8", "replace")).hexdigest()[:_DIGITS]


def causes(cases: Sequence[Case]) -> list[Cause]:
    """Group the cases by the finding to which they belong, others by signature. Completely waived causes and remarks
    come last; else the order is that of the cases.

    A signature describes the failure's class and what happened, not the place of the fault in the engine. Two similar
    bugs look like one cause, and one bug with two effects (stale state and a crash) looks like two. No case is lost: a
    cause lists all its cases, and each keeps its own section, file and verdict.
    """
    alike: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        alike[cause_key(case)].append(case)
    return sorted(
        (_cause(same) for same in alike.values()), key=lambda cause: cause.waived + cause.remarks == len(cause.cases)
    )


def _cause(cases: list[Case]) -> Cause:
    first = cases[0]
    return Cause(
        fingerprint=fingerprint(cause_key(first)),
        signature=first.signature,
        sentence=first.sentence,
        requirements=sorted({case.requirement for case in cases}),
        cells=sorted({case.place for case in cases}),
        cases=[case.id for case in cases],
        waived=sum(case.known_issue is not None for case in cases),
        remarks=sum(case.is_remark for case in cases),
        finding=finding_of(first),
    )


def cause_key(case: Case) -> str:
    """Return what the cases of one cause have in common."""
    return finding_of(case) or case.signature


def finding_of(case: Case) -> str:
    """Return the finding to which a case belongs; "" if there is none."""
    return case.attribution.finding if case.attribution is not None else ""


def cause_summary(found: Sequence[Cause]) -> str:
    """Return the numbers of counterexamples and causes as text; "" if there are none."""
    if not found:
        return ""
    cases, waived = sum(len(cause.cases) for cause in found), sum(cause.waived for cause in found)
    remarks = sum(cause.remarks for cause in found)
    said = [f"{many(cases, 'counterexample')} of {many(len(found), 'cause')}"]
    said += [f"{waived} waived"] if waived else []
    return ", ".join([*said, *([f"{remarks} of remarks"] if remarks else [])])


def waived_text(cause: Cause) -> str:
    """Return as text how many cases of a cause are waived."""
    if cause.remarks == len(cause.cases):
        return "remark"
    if not cause.waived:
        return "not waived"
    return "waived" if cause.waived == len(cause.cases) else f"{cause.waived} of {len(cause.cases)} waived"
