"""A requirement's statement in its parts, as suites write them: what is required, why it can break, how it is told."""

from __future__ import annotations

import re
from dataclasses import dataclass

_RATIONALE = re.compile(r"Why it can break: (.*?)(?: Oracle: (.*?))?(?: (Vacuous .*))?")


@dataclass(frozen=True, slots=True)
class Told:
    """The statement's sentences by what they are about. What has no such parts is all statement."""

    states: list[str]
    breaks: list[str]
    oracle: list[str]
    vacuous: list[str]


def told(statement: str) -> Told:
    """The parts of all paragraphs, in order; a requirement of several tests has several of each."""
    parts = Told([], [], [], [])
    for paragraph in re.split(r"\n\s*\n", statement):
        words = " ".join(paragraph.split())
        rationale = _RATIONALE.fullmatch(words)
        if rationale is None:
            parts.states.extend([words] if words else [])
            continue
        for place, part in zip((parts.breaks, parts.oracle, parts.vacuous), rationale.groups(), strict=True):
            place.extend([part] if part else [])
    return parts
