"""What a report says of the findings that a run met, from their records."""

from __future__ import annotations

import msgspec

from coldproof.harness.case.finding_records import is_regression, read_records
from coldproof.harness.case.repairs import read_repairs
from coldproof.harness.schema.findings import FindingFacts, FindingRecord
from coldproof.harness.schema.results import Results
from coldproof.reports.assemble.finding_cases import met_findings


def facts_of(results: Results) -> list[FindingFacts]:
    """Return the facts about the findings that a run met. One without a record, as in a later release, has none."""
    names = met_findings(results)
    records = read_records() if names else {}
    mended = {name for repair in read_repairs().values() for name in repair.mends} if names else set()
    version = results.engine.version if results.engine is not None else None
    return [as_facts(records[name], repair=name in mended, version=version) for name in names if name in records]


def as_facts(record: FindingRecord, *, repair: bool, version: str | None = None) -> FindingFacts:
    """Return the facts in a record. `repair`: Coldproof has one. `version`: of the engine of the run."""
    return FindingFacts(
        id=record.id,
        title=record.title,
        severity=record.severity,
        status=record.status,
        releases=record.releases,
        upstream=list(record.upstream),
        repair=repair,
        fixed=is_regression(record, version),
    )


def with_facts(results: Results) -> Results:
    """Return stored results with the facts that they lack, as an earlier release wrote them without."""
    return results if results.records else msgspec.structs.replace(results, records=facts_of(results))
