"""Builds the result of each requirement from the events of its tests and cells."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgspec

from coldproof.reports.assemble.distributions import distributions
from coldproof.reports.schema.results import CellResult, RequirementResult, StatementParts
from coldproof.reports.schema.verdict import Verdict, worst

Event = dict[str, Any]


def requirement_results(events: list[Event]) -> list[RequirementResult]:
    """Return one result for each announced requirement, sorted by id."""
    announced: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event["event"] == "requirement":
            announced[event["id"]].append(event)
    verdicts = {(e["requirement"], e["cell"], e["test"]): e for e in events if e["event"] == "verdict"}
    examples = [e for e in events if e["event"] == "example"]
    results = []
    for requirement_id, tests in sorted(announced.items()):
        cells = [cell_result(test, verdicts.get((requirement_id, test["cell"], test["test"]))) for test in tests]
        merged = merge_cells(cells)
        verdict = worst([cell.verdict for cell in merged])
        results.append(
            RequirementResult(
                id=requirement_id,
                title="; ".join(dict.fromkeys(test["title"] for test in tests)),
                statement="\n\n".join(dict.fromkeys(test["statement"] for test in tests)),
                parts=statement_parts(tests),
                verdict=verdict,
                reason=next(cell.reason for cell in merged if cell.verdict is verdict),
                examples=sum(cell.examples for cell in merged),
                evidence=sum_evidence([cell.evidence for cell in merged]),
                needed=list(dict.fromkeys(name for test in tests for name in test.get("shows", ()))),
                cells=merged,
                cases=[
                    e["case"]["id"]
                    for e in events
                    if e["event"] == "case" and e["case"]["requirement"] == requirement_id
                ],
                upstream=list(dict.fromkeys(link for test in tests for link in test.get("upstream", ()))),
                fails_on=list(dict.fromkeys(words for test in tests for words in test.get("fails_on", ()))),
                distributions=distributions(e["tally"] for e in examples if e["requirement"] == requirement_id),
            )
        )
    return results


def statement_parts(tests: list[Event]) -> StatementParts:
    """Return the parts of all different statements of one requirement."""
    different = {test["statement"]: msgspec.convert(test["parts"], StatementParts) for test in tests}.values()
    topics = StatementParts.__struct_fields__
    return StatementParts(**{name: [words for parts in different for words in getattr(parts, name)] for name in topics})


def cell_result(test: Event, verdict: Event | None) -> CellResult:
    """Return one test's result. Without a verdict, the run ended before the test was concluded."""
    if verdict is None:
        return CellResult(
            cell=test["cell"],
            verdict=Verdict.NOT_EXERCISED,
            reason="the run ended before this requirement was concluded",
            examples=0,
            requests=0,
            evidence={},
            seconds=0.0,
        )
    fields = ("cell", "reason", "examples", "requests", "evidence", "seconds")
    return CellResult(
        verdict=Verdict(verdict["verdict"]),
        drawn=verdict.get("drawn", 0.0),
        share=verdict.get("share", 0.0),
        absent=verdict.get("absent", []),
        missing=verdict.get("missing", []),
        **{name: verdict[name] for name in fields},
    )


def merge_cells(cells: list[CellResult]) -> list[CellResult]:
    """Merge the results of all tests of one requirement in each cell."""
    by_cell: dict[str, list[CellResult]] = defaultdict(list)
    for cell in cells:
        by_cell[cell.cell].append(cell)
    merged = []
    for name, parts in by_cell.items():
        verdict = worst([part.verdict for part in parts])
        merged.append(
            CellResult(
                cell=name,
                verdict=verdict,
                reason="; ".join(dict.fromkeys(part.reason for part in parts if part.verdict is verdict)),
                examples=sum(part.examples for part in parts),
                requests=sum(part.requests for part in parts),
                evidence=sum_evidence([part.evidence for part in parts]),
                seconds=round(sum(part.seconds for part in parts), 3),
                drawn=round(sum(part.drawn for part in parts), 3),
                share=round(sum(part.share for part in parts), 3),
                absent=list(dict.fromkeys(name for part in parts for name in part.absent)),
                missing=list(dict.fromkeys(name for part in parts for name in part.missing)),
            )
        )
    return merged


def sum_evidence(parts: list[dict[str, float]]) -> dict[str, float]:
    """Return the sums of evidence counters."""
    total: dict[str, float] = defaultdict(float)
    for part in parts:
        for name, value in part.items():
            total[name] += value
    return dict(total)
