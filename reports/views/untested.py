"""What a run did not test, and what would change that: a row for each remedy, with the requirements that it is for."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from coldproof.harness.schema.case import UNPROVED
from coldproof.harness.schema.results import RequirementResult, Results
from coldproof.harness.schema.verdict import Verdict
from coldproof.reports.assemble.evidence_floor import seconds_short
from coldproof.reports.format.text import number, one_line

ORDER = (Verdict.ERROR, Verdict.INCONCLUSIVE, Verdict.NOT_EXERCISED, Verdict.UNSUPPORTED)
_FACTOR = re.compile(r"a --budget ([\d.]+) times as large")
_LONGEST = 240  # characters of a reason
_MOST = 6  # needs that are named


@dataclass(frozen=True, slots=True)
class Untested:
    """Requirements of one verdict that lack the same. `why`: what they lack; `change`: what would change that."""

    verdict: Verdict
    requirements: list[str]
    why: str
    change: str


def untested(results: Results) -> list[Untested]:
    """Return what the run did not test: errors first, then what was undecided, not exercised, and cannot be tested."""
    groups: dict[tuple[Verdict, str, str], list[RequirementResult]] = defaultdict(list)
    for one in results.requirements:
        if one.verdict in ORDER:
            groups[one.verdict, *_lack(one, results)].append(one)
    elsewhere, given = _elsewhere(results), _given_by_switches(results)
    rows = [
        _row(results, verdict, why, change, ones, without=given if change == elsewhere else set())
        for (verdict, why, change), ones in groups.items()
    ]
    return sorted(rows, key=lambda row: (ORDER.index(row.verdict), -len(row.requirements), row.requirements))


def _row(
    results: Results,
    verdict: Verdict,
    why: str,
    change: str,
    ones: list[RequirementResult],
    *,
    without: Collection[str],
) -> Untested:
    if verdict is Verdict.UNSUPPORTED:
        needs = [name for name in _needs(ones) if name not in without]
        more = f"; and {len(needs) - _MOST} more" if len(needs) > _MOST else ""
        why = f"needs {'; '.join(needs[:_MOST])}{more}" if needs else one_line(ones[0].reason, _LONGEST)
    if factors := [float(found[1]) for one in ones if (found := _FACTOR.search(one.reason))]:
        change = f"a --budget about {number(max(factors))} times as long"
        if results.switches is not None:  # tests of a server go on to their floor, one after the other
            seconds = results.duration_s + sum(seconds_short(one.cells) for one in ones)
            change = f"--budget {math.ceil(seconds / 60)}m"
    return Untested(verdict, sorted(one.id for one in ones), why, change)


def _lack(one: RequirementResult, results: Results) -> tuple[str, str]:
    """Return what a requirement lacks, and what would change that."""
    match one.verdict:
        case Verdict.UNSUPPORTED:
            return "", _switch_for(one, results) or _elsewhere(results)
        case Verdict.NOT_EXERCISED if switch := _switch_for(one, results):
            return "its evidence needs what the server lacks", switch
        case Verdict.NOT_EXERCISED if "--budget" in one.reason:
            return "too few examples in the time of the run", "a longer --budget"
        case Verdict.NOT_EXERCISED:
            return one_line(one.reason, _LONGEST), "a longer --budget, or cells that reach it (coldproof cells)"
        case Verdict.INCONCLUSIVE if UNPROVED in one.reason:
            return (
                "a counterexample was found, and not confirmed for lack of time",
                "coldproof prove, or a longer --budget",
            )
        case Verdict.INCONCLUSIVE:
            return one_line(one.reason, _LONGEST), "more runs, or an engine that is deterministic (docs/noise.md)"
        case _:
            return one_line(one.reason, _LONGEST), "see the logs in the report folder, and run these again with -v"


def _switch_for(one: RequirementResult, results: Results) -> str:
    """Return the missing switches of the server without which a requirement cannot be tested; "" if none is known."""
    rows = results.switches.missing if results.switches is not None else ()
    return " + ".join(row.name for row in rows if one.id in row.adds_requirements)


def _given_by_switches(results: Results) -> set[str]:
    """Return what the requirements lack that some switch adds: another engine is not needed for that."""
    able = [one for one in results.requirements if _switch_for(one, results)]
    return {name for one in able for cell in one.cells for name in cell.absent}


def _elsewhere(results: Results) -> str:
    """Return where a requirement can be tested that this engine, as it is reached here, does not support."""
    if results.switches is not None:
        return "no switch of an attached server: an engine that Coldproof starts (coldproof run --engine NAME)"
    return "another cell or engine (coldproof cells)"


def _needs(ones: Iterable[RequirementResult]) -> Iterator[str]:
    """Yield each thing that these requirements need and the engine lacks, once, most wanted first."""
    wanted: dict[str, set[str]] = defaultdict(set)
    for one in ones:
        for name in {name for cell in one.cells for name in cell.absent}:
            wanted[name].add(one.id)
    for name, _ in sorted(wanted.items(), key=lambda pair: (-len(pair[1]), pair[0])):
        yield name
