"""The run as Markdown for a CI step summary."""

from __future__ import annotations

import functools

from coldproof.reports.assemble import resource_growth
from coldproof.reports.assemble.causes import cause_places, cause_summary, causes_of
from coldproof.reports.format.markdown import code, escaped, section
from coldproof.reports.format.text import duration, many, number
from coldproof.reports.format.waivers import scope, waiver_state
from coldproof.reports.run_report.fleet_section import fleet_counts
from coldproof.reports.schema.case import Case
from coldproof.reports.schema.results import Cause, RequirementResult, Results, Waiver
from coldproof.reports.schema.verdict import Verdict
from coldproof.reports.views import overview

_LONGEST = 300  # characters of a reason in the table
_section = functools.partial(section, elsewhere=", in index.html")


def summary_markdown(results: Results) -> str:
    """Return the summary: verdict and counts, requirements that do not conform, causes, violations, waivers, gaps.

    Conforming requirements are only named, because a reader of a job summary looks for what needs action.
    """
    blocks = [*_head(results)]
    if overview.failed_selftests(results):
        blocks += _self_test(results)
    else:
        blocks += [*_counts(results), *_table(results), *_conforming(results)]
        blocks += [*_causes(results), *_violations(results), *_waivers(results), *_not_shown(results)]
        blocks += _growth(results)
    return "\n".join([*blocks, *_where(results)]).rstrip() + "\n"


def _head(results: Results) -> list[str]:
    marks = "".join(f"{mark}: " for mark in overview.banners(results))
    glyph = overview.GLYPH[overview.headline_style(results)]
    lines = [f"## Coldproof: {glyph} {marks}prefix cache {overview.run_status(results).value}", ""]
    lines += [f"**{escaped(overview.headline(results))}**", ""]
    if results.problem:
        lines += [f"**The run could not go on:** {escaped(results.problem)}", ""]
    facts = f"{overview.engine_name(results)}, profile {results.profile}, seed {results.seed}"
    lines += [f"{escaped(facts)}, {duration(results.duration_s)}, exit code {results.exit_code}", ""]
    runs = f"{many(len(results.fleet), 'run')} of a fleet: {fleet_counts(results)}"
    return [*lines, runs, ""] if results.fleet else lines


def _counts(results: Results) -> list[str]:
    found = [(verdict, count) for verdict, count in overview.counts(results) if count]
    said = [f"**{count}** {overview.GLYPH[verdict]} {verdict.value}" for verdict, count in found]
    return [" · ".join(said), ""] if said else []


def _where(results: Results) -> list[str]:
    files = "`index.html` (the whole report), `results.json`, `junit.xml`"
    cases = ", and for each case `cases/ID.md`, an issue ready to file" if results.cases else ""
    return ["### Where to look", "", f"In the report folder: {files}{cases}.", ""]


def _self_test(results: Results) -> list[str]:
    rows = [f"| {escaped(row.planted)} | {escaped(row.said)} |" for row in overview.failed_selftests(results)]
    return [
        "### Failed self-tests of the detector",
        "",
        "| Planted fault | Detector's result |",
        "|---|---|",
        *rows,
        "",
    ]


def _table(results: Results) -> list[str]:
    if not results.requirements:
        return ["No requirement was tested, so nothing is verified.", ""]
    order = {verdict: place for place, (verdict, _) in enumerate(overview.counts(results))}
    wanting = [one for one in results.requirements if one.verdict is not Verdict.CONFORMS]
    head = [
        "### Requirements that do not conform",
        "",
        "| Requirement | Verdict | Examples | Why |",
        "|---|---|--:|---|",
    ]
    rows = map(_row, sorted(wanting, key=lambda one: order[one.verdict]))
    return [*head, *rows, ""] if wanting else []


def _conforming(results: Results) -> list[str]:
    ids = [escaped(one.id) for one in results.requirements if one.verdict is Verdict.CONFORMS]
    return [f"Conforming: {', '.join(ids)}", ""] if ids else []


def _row(requirement: RequirementResult) -> str:
    verdict = f"{overview.GLYPH[requirement.verdict]} {requirement.verdict.value}"
    name = f"{escaped(requirement.id)} {escaped(requirement.title)}"
    return f"| {name} | {verdict} | {number(requirement.examples)} | {escaped(requirement.reason, _LONGEST)} |"


def _causes(results: Results) -> list[str]:
    found = causes_of(results)
    return _section(cause_summary(found), map(_cause, found))


def _cause(cause: Cause) -> str:
    return f"- {code(cause.fingerprint)} {escaped(cause_places(cause))}: {escaped(cause.sentence)}"


def _violations(results: Results) -> list[str]:
    cases = [case for case in overview.ordered_cases(results.cases) if case.known_issue is None]
    return _section("Violations", map(_violation, cases))


def _violation(case: Case) -> str:
    where = f"**{escaped(case.requirement)}** in {escaped(case.cell)}, {case.failure_class.value}"
    return f"- {where}: {escaped(case.sentence)}\n  Replay: {code(case.replay)}"


def _waivers(results: Results) -> list[str]:
    return _section("Waivers", map(_waiver, overview.waivers(results)))


def _waiver(waiver: Waiver) -> str:
    where = f"{escaped(waiver.requirement)} in {escaped(waiver.cell)}, {code(scope(waiver))}"
    expiry = f", expires {escaped(waiver.expires)}" if waiver.expires and waiver.state != "expired" else ""
    said = f"{escaped(waiver.reason)} ({escaped(waiver.link)}{expiry})"
    return f"- **{escaped(waiver_state(waiver))}**: {where}: {said}"


def _growth(results: Results) -> list[str]:
    rows = (
        f"- {escaped(one.process)}, {one.what}: {escaped(resource_growth.growth_text(one))}" for one in results.growth
    )
    return _section("Resource usage", rows)


def _not_shown(results: Results) -> list[str]:
    return _section(
        "Not verified",
        (
            f"- **{entry.row.verdict.value}** {escaped(entry.requirement)} in {escaped(entry.row.cell)}: "
            + escaped(entry.row.reason or "no reason was recorded")
            for entry in overview.not_verified(results)
        ),
    )
