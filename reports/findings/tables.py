"""What both pages of the findings show: the findings by engine, and counts in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from coldproof.harness.schema.findings import NOT_REPORTED, FindingRecord, FindingStatus
from coldproof.reports.format.text import many

ORDER = tuple(FindingStatus)


def by_engine(records: Sequence[FindingRecord]) -> dict[str, list[FindingRecord]]:
    """Return the findings of each engine, the engine with most first; fixed ones last."""
    engines = Counter(record.engine for record in records)
    return {
        engine: sorted(
            (one for one in records if one.engine == engine), key=lambda one: (ORDER.index(one.status), one.id)
        )
        for engine, _ in sorted(engines.items(), key=lambda item: (-item[1], item[0]))
    }


def headline(records: Sequence[FindingRecord]) -> str:
    """Return how many findings there are, of how many engines, and what became of them."""
    engines = len({record.engine for record in records})
    states = Counter(record.status for record in records)
    parts = ", ".join(f"{states[status]} {status.value}" for status in ORDER if states[status])
    return f"{many(len(records), 'root cause')} in {many(engines, 'project')}: {parts}"


def found_in_words(record: FindingRecord) -> str:
    """Return how a finding was found, in words."""
    found = record.found
    versions = ", ".join(f"{name} {version}" for name, version in sorted(found.environment.items()))
    took = f"{found.requests:,} requests of its trial, drawn in {found.seconds:g} s" if found.requests else ""
    place = f"layer {found.layer}, cell {found.cell}, {found.worker} worker"
    if found.model:
        place += f" with --model {found.model}"
    return "; ".join(filter(None, (place, took, versions)))


def is_reported(record: FindingRecord) -> bool:
    """Return whether a public report is known."""
    return record.upstream != NOT_REPORTED
