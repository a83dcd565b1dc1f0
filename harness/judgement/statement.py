"""Splits the docstring of a suite's test into the parts of the requirement's statement.

A paragraph states what is required of the engine. A paragraph that begins with "Why it can break: " has the reason,
then after "Oracle: " what is compared, then from "Vacuous" on the sentences that say when the test shows nothing.
"""

from __future__ import annotations

import re

from coldproof.reports.schema.results import StatementParts

_RATIONALE = re.compile(r"Why it can break: (.*?)(?: Oracle: (.*?))?(?: (Vacuous .*))?")


def statement_parts(docstring: str) -> StatementParts:
    """Return the parts of a docstring, each paragraph on one line."""
    parts = StatementParts()
    for paragraph in re.split(r"\n\s*\n", docstring):
        words = " ".join(paragraph.split())
        rationale = _RATIONALE.fullmatch(words)
        if rationale is None:
            parts.required.extend([words] if words else [])
            continue
        reasons = (parts.why_it_can_break, parts.oracle, parts.vacuous)
        for place, part in zip(reasons, rationale.groups(), strict=True):
            place.extend([part] if part else [])
    return parts
