"""Builds the result of each requirement from the events of its tests and cells."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import msgspec

from coldproof.harness.schema.cold_answers import ColdAnswers
from coldproof.harness.schema.divergences import describe, divergence_rates, exceeds
from coldproof.harness.schema.evidence import ReportedEvidence
from coldproof.harness.schema.results import CellResult, LayerVerdict, RequirementResult, StatementParts
from coldproof.harness.schema.verdict import Verdict, worst
from coldproof.reports.assemble.distributions import distributions
from coldproof.reports.assemble.evidence_floor import discriminating_examples, shortfall
from coldproof.reports.assemble.layers import layer_names
from coldproof.reports.assemble.reach import reached_cells
from coldproof.reports.assemble.shipped_causes import cell_with_causes, shipped_causes, with_causes

Event = dict[str, Any]
UNCONCLUDED = "the run ended before this requirement was concluded"
DIVERGED = (ReportedEvidence.DIVERGED_HITS, ReportedEvidence.DIVERGED_MISSES)


def requirement_results(events: list[Event]) -> list[RequirementResult]:
    """Return one result for each announced requirement, sorted by id."""
    announced: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event["event"] == "requirement":
            announced[event["id"]].append(event)
    order = {name: number for number, name in enumerate(layer_names(events))}
    verdicts = {(e["requirement"], *place(e)): e for e in events if e["event"] == "verdict"}
    examples = [e for e in events if e["event"] == "example"]
    found = {place(e) for e in events if e["event"] == "waits" and e["stage"] != "more"}
    exceeding, shipped = cells_with_excess(verdicts.values()), shipped_causes(events)
    results = []
    for requirement_id, tests in sorted(announced.items()):
        tests.sort(key=lambda test: order.get(test.get("layer", ""), 0))
        concluded = [verdicts.get((requirement_id, *place(test))) for test in tests]
        cells = [cell_result(test, one, found=place(test) in found) for test, one in zip(tests, concluded, strict=True)]
        cells = [with_excess(cell, exceeding.get((cell.layer, cell.cell), "")) for cell in cells]
        merged = merge_cells(cells, several=len(order) > 1)
        causes = [one for one in shipped.get(requirement_id, []) if one.verdict is not Verdict.CONFORMS]
        shown = [one.finding for one in shipped.get(requirement_id, []) if one.verdict is Verdict.CONFORMS]
        drawn = sum(map(discriminating_examples, merged))
        verdict, reason = with_causes(*verdict_of_cells(merged), causes, examples=drawn)
        merged = [cell_with_causes(cell, causes) for cell in merged]
        ran = [test for test, cell in zip(tests, cells, strict=True) if cell.verdict is not Verdict.UNSUPPORTED]
        results.append(
            RequirementResult(
                id=requirement_id,
                title="; ".join(dict.fromkeys(test["title"] for test in tests)),
                area=next((test["area"] for test in tests if test.get("area")), ""),
                statement="\n\n".join(dict.fromkeys(test["statement"] for test in tests)),
                parts=statement_parts(tests),
                verdict=verdict,
                reason=reason,
                examples=sum(cell.examples for cell in merged),
                requests=sum(cell.requests for cell in merged),
                layers=layer_verdicts(merged),
                evidence=sum_evidence([cell.evidence for cell in merged]),
                needed=list(dict.fromkeys(name for test in ran or tests for name in test["shows"])),
                cells=merged,
                cases=[
                    e["case"]["id"]
                    for e in events
                    if e["event"] == "case" and e["case"]["requirement"] == requirement_id
                ],
                known_causes=list(dict.fromkeys(one.finding for one in causes)),
                remarks=list(dict.fromkeys([*shown, *(name for cell in merged for name in cell.remarks)])),
                upstream=list(dict.fromkeys(link for test in tests for link in test["upstream"])),
                fails_on=list(dict.fromkeys(words for test in tests for words in test["fails_on"])),
                distributions=distributions(e["tally"] for e in examples if e["requirement"] == requirement_id),
                reach=reached_cells(e for e in examples if e["requirement"] == requirement_id),
            )
        )
    return results


def place(event: Event) -> tuple[str, str, str]:
    """Return where a test ran: its layer, its cell and its name."""
    return event.get("layer", ""), event["cell"], event["test"]


def cells_with_excess(verdicts: Iterable[Event]) -> dict[tuple[str, str], str]:
    """Return, for each cell of each layer in which more answers diverged than noise explains, how many did.

    Many requirements together may show what each of them is too short to show.
    """
    by_cell: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for event in verdicts:
        by_cell[event.get("layer", ""), event["cell"]].append(event)
    found = {}
    for where, events in by_cell.items():
        evidence = sum_evidence([event["evidence"] for event in events])
        cold = [msgspec.convert(event["cold"], ColdAnswers).rate for event in events]
        largest = max(cold, key=lambda rate: rate.tokens)
        if exceeds(*divergence_rates(evidence), largest):
            found[where] = describe(evidence, largest)
    return found


def with_excess(cell: CellResult, excess: str) -> CellResult:
    """Return a cell's result, which does not conform if its divergences are some of too many. `excess`: how many."""
    if not excess or cell.verdict is not Verdict.CONFORMS or not any(map(cell.evidence.get, DIVERGED)):
        return cell
    reason = f"over all requirements in this cell, {excess}: more than noise explains"
    return msgspec.structs.replace(cell, verdict=Verdict.INCONCLUSIVE, reason=reason)


def verdict_of_cells(cells: list[CellResult]) -> tuple[Verdict, str]:
    """Return the verdict of a requirement and its reason: the worst of its cells, or NOT EXERCISED on few examples."""
    verdict = worst([cell.verdict for cell in cells])
    few = shortfall(cells) if verdict is Verdict.CONFORMS else ""
    if few:
        return Verdict.NOT_EXERCISED, few
    return verdict, next(cell.reason for cell in cells if cell.verdict is verdict)


def layer_verdicts(cells: list[CellResult]) -> list[LayerVerdict]:
    """Return the verdict of a requirement in each layer."""
    by_layer: dict[str, list[CellResult]] = defaultdict(list)
    for cell in cells:
        by_layer[cell.layer].append(cell)
    return [
        LayerVerdict(
            layer=layer,
            verdict=worst([cell.verdict for cell in own]),
            examples=sum(cell.examples for cell in own),
            requests=sum(cell.requests for cell in own),
        )
        for layer, own in by_layer.items()
        if layer
    ]


def statement_parts(tests: list[Event]) -> StatementParts:
    """Return the parts of all different statements of one requirement."""
    different = {test["statement"]: msgspec.convert(test["parts"], StatementParts) for test in tests}.values()
    topics = StatementParts.__struct_fields__
    return StatementParts(**{name: [words for parts in different for words in getattr(parts, name)] for name in topics})


def cell_result(test: Event, verdict: Event | None, *, found: bool = False) -> CellResult:
    """Return one test's result. Without a verdict, the run ended before the test was concluded.

    `found`: it had a counterexample that waited for its proof when the run was killed.
    """
    if verdict is None:
        why = "a counterexample was found, and the run ended before it was confirmed" if found else UNCONCLUDED
        return CellResult(
            cell=test["cell"],
            layer=test.get("layer", ""),
            verdict=Verdict.INCONCLUSIVE if found else Verdict.NOT_EXERCISED,
            reason=why,
            examples=0,
            requests=0,
            evidence={},
            seconds=0.0,
        )
    recorded = ("cell", "reason", "examples", "requests", "evidence", "seconds", "drawn", "share", "exhausted")
    return CellResult(
        layer=verdict.get("layer", ""),
        verdict=Verdict(verdict["verdict"]),
        remarks=verdict.get("remarks", []),
        **{name: verdict[name] for name in (*recorded, "absent", "missing")},
    )


def one_text(reasons: Iterable[str]) -> str:
    """Join different reasons, and different parts of them, with semicolons; a full stop stands only at the end."""
    *first, last = dict.fromkeys(reasons)
    whole = "; ".join([*(reason.removesuffix(".") for reason in first), last])
    return "; ".join(dict.fromkeys(whole.split("; ")))


def merge_cells(cells: list[CellResult], *, several: bool) -> list[CellResult]:
    """Merge the results of all tests of one requirement in each cell of each layer. `several`: the run has several."""
    by_cell: dict[tuple[str, str], list[CellResult]] = defaultdict(list)
    for cell in cells:
        by_cell[cell.layer, cell.cell].append(cell)
    merged = []
    for (layer, name), parts in by_cell.items():
        verdict = worst([part.verdict for part in parts])
        merged.append(
            CellResult(
                cell=name,
                layer=layer,
                column=f"{layer}: {name}" if several else "",
                verdict=verdict,
                reason=one_text(part.reason for part in parts if part.verdict is verdict),
                examples=sum(part.examples for part in parts),
                requests=sum(part.requests for part in parts),
                evidence=sum_evidence([part.evidence for part in parts]),
                seconds=round(sum(part.seconds for part in parts), 3),
                drawn=round(sum(part.drawn for part in parts), 3),
                share=round(sum(part.share for part in parts), 3),
                exhausted=all(part.exhausted for part in parts if part.verdict is not Verdict.UNSUPPORTED),
                absent=list(dict.fromkeys(name for part in parts for name in part.absent)),
                missing=list(dict.fromkeys(name for part in parts for name in part.missing)),
                remarks=list(dict.fromkeys(name for part in parts for name in part.remarks)),
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
