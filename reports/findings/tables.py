"""What both pages of the findings show: the findings in order, and counts by severity and status."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeVar

from coldproof.harness.schema.findings import FindingRecord, FindingStatus, Severity
from coldproof.reports.format.text import many

SEVERITIES, STATUSES = tuple(Severity), tuple(FindingStatus)
Choice = TypeVar("Choice", bound=enum.StrEnum)


def ranked(records: Iterable[FindingRecord]) -> list[FindingRecord]:
    """Return findings with the most severe first, and those of one severity by status, then by id."""
    return sorted(
        records, key=lambda one: (SEVERITIES.index(one.severity), STATUSES.index(one.status), one.engine, one.id)
    )


def by_engine(records: Sequence[FindingRecord]) -> dict[str, list[FindingRecord]]:
    """Return the findings of each engine, ranked, the engine with most first."""
    engines = Counter(record.engine for record in records)
    return {
        engine: ranked(one for one in records if one.engine == engine)
        for engine, _ in sorted(engines.items(), key=lambda item: (-item[1], item[0]))
    }


def headline(records: Sequence[FindingRecord]) -> str:
    """Return how many root causes and remarks there are, and of how many engines."""
    causes = root_causes(records)
    remarks = len(records) - len(causes)
    counted = many(len(causes), "root cause") + (f" and {many(remarks, 'remark')}" if remarks else "")
    return f"{counted} in {many(len({record.engine for record in records}), 'project')}"


def root_causes(records: Iterable[FindingRecord]) -> list[FindingRecord]:
    """Return the findings without remarks."""
    return [record for record in records if record.is_root_cause]


def counts_in_words(records: Sequence[FindingRecord]) -> tuple[str, str]:
    """Return the counts of the root causes by severity and by status, in words."""
    causes = root_causes(records)
    return (
        f"By severity: {counted(SEVERITIES, (one.severity for one in causes))}",
        f"By status: {counted(STATUSES, (one.status for one in causes))}",
    )


def counted(order: Sequence[Choice], values: Iterable[Choice]) -> str:
    """Return how often each value occurs, in this order and without those that do not occur."""
    counts = Counter(values)
    return ", ".join(f"{counts[value]} {value.value}" for value in order if counts[value]) or "none"


def count_table(records: Sequence[FindingRecord]) -> tuple[list[str], list[list[str]]]:
    """Return the heads and rows of a table that counts findings by severity and status, with sums."""
    counts = Counter((one.severity, one.status) for one in records)
    severities = [one for one in SEVERITIES if any(counts[one, status] for status in STATUSES)]
    statuses = [one for one in STATUSES if any(counts[severity, one] for severity in SEVERITIES)]
    heads = ["severity", *(one.value for one in statuses), "all"]
    rows = [
        [severity.value, *(number(counts[severity, one]) for one in statuses), number(sum_of(counts, severity))]
        for severity in severities
    ]
    sums = [number(sum(counts[severity, one] for severity in severities)) for one in statuses]
    return heads, [*rows, ["all", *sums, number(len(records))]]


def sum_of(counts: Counter[tuple[Severity, FindingStatus]], severity: Severity) -> int:
    """Return the number of findings of one severity."""
    return sum(counts[severity, status] for status in STATUSES)


def number(count: int) -> str:
    """Return a count for a table, in which zeros are left out."""
    return str(count) if count else ""


def found_in_words(record: FindingRecord) -> str:
    """Return how a finding was found, in words."""
    found = record.found
    versions = ", ".join(f"{name} {version}" for name, version in sorted(found.environment.items()))
    took = f"{found.requests:,} requests of its trial, drawn in {found.seconds:g} s" if found.requests else ""
    place = f"layer {found.layer}, cell {found.cell}, {found.worker} worker"
    if found.model:
        place += f" with --model {found.model}"
    return "; ".join(filter(None, (place, took, versions)))
