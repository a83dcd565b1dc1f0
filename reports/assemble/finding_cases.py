"""To which finding each case of a run belongs, as far as the run says so."""

from __future__ import annotations

from coldproof.harness.schema.findings import ReplayResult
from coldproof.harness.schema.results import Results
from coldproof.reports.assemble.causes import finding_of


def finding_of_cases(results: Results) -> dict[str, str]:
    """Return the finding of each case that has one: by its attribution, its waiver, or the replay that made it.

    A replay of a finding that fails in a different way shows something else.
    """
    waived = {case: one.finding for one in results.waivers if one.finding for case in one.cases}
    replayed = {one.case: one.finding for one in results.findings if one.case and one.result is ReplayResult.FAILS}
    attributed = {case.id: found for case in results.cases if (found := finding_of(case))}
    return {**waived, **replayed, **attributed}


def met_findings(results: Results) -> list[str]:
    """Return the ids of the findings that the run met: those of its cases, and those that it has as it is shipped."""
    replayed = [one.finding for one in results.findings if one.result is ReplayResult.FAILS]
    shipped = [name for one in results.requirements for name in (*one.known_causes, *one.remarks)]
    return sorted({*finding_of_cases(results).values(), *replayed, *shipped})
