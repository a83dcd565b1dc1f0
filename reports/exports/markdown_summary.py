"""The run as Markdown for a CI step summary."""

from __future__ import annotations

import functools

from coldproof.harness.schema.case import Case
from coldproof.harness.schema.results import DroppedKind, Growth, RequirementResult, Results, Waiver
from coldproof.harness.schema.verdict import Verdict
from coldproof.reports.assemble.causes import cause_places, cause_summary
from coldproof.reports.assemble.over_time import growth_text
from coldproof.reports.exports.weight_updates import weight_updates_markdown
from coldproof.reports.format.markdown import code, escaped, section, table
from coldproof.reports.format.shell import command_line
from coldproof.reports.format.text import duration, many, number
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
        blocks += weight_updates_markdown(results)
        violations = [case for case in overview.ordered_cases(results.cases) if case.known_issue is None]
        blocks += [*_causes(results), *_section("Violations", map(_violation, violations))]
        blocks += _section("Waivers", map(_waiver, overview.waivers(results)))
        blocks += _section("Requests that were no longer sent", map(_dropped, results.dropped_kinds))
        blocks += _section("Not verified", map(_not_verified, overview.not_verified(results)))
        blocks += _section("Resource usage", map(_growth, results.growth))
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
    runs = f"{many(len(results.fleet), 'run')} of a fleet: {overview.fleet_counts(results)}"
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
    rows = ((escaped(row.planted), escaped(row.said)) for row in overview.failed_selftests(results))
    return ["### Failed self-tests of the detector", "", *table(("Planted fault", "Detector's result"), rows)]


def _table(results: Results) -> list[str]:
    if not results.requirements:
        return ["No requirement was tested, so nothing is verified.", ""]
    wanting = [one for one in results.requirements if one.verdict is not Verdict.CONFORMS]
    rows = map(_row, sorted(wanting, key=lambda one: overview.WORST_FIRST.index(one.verdict)))
    lines = table(("Requirement", "Verdict", "Examples", "Why"), rows, numbers=("Examples",))
    return ["### Requirements that do not conform", "", *lines] if wanting else []


def _conforming(results: Results) -> list[str]:
    ids = [escaped(one.id) for one in results.requirements if one.verdict is Verdict.CONFORMS]
    return [f"Conforming: {', '.join(ids)}", ""] if ids else []


def _row(requirement: RequirementResult) -> tuple[str, ...]:
    verdict = f"{overview.GLYPH[requirement.verdict]} {requirement.verdict.value}"
    name = f"{escaped(requirement.id)} {escaped(requirement.title)}"
    return name, verdict, number(requirement.examples), escaped(requirement.reason, _LONGEST)


def _causes(results: Results) -> list[str]:
    found = results.causes
    return _section(
        cause_summary(found),
        (f"- {code(one.fingerprint)} {escaped(cause_places(one))}: {escaped(one.sentence)}" for one in found),
    )


def _violation(case: Case) -> str:
    where = f"**{escaped(case.requirement)}** in {escaped(case.place)}, {case.failure_class.value}"
    cause = f"\n  {escaped(case.attribution.not_accepted)}" if case.attribution is not None else ""
    return f"- {where}: {escaped(case.sentence)}{cause}\n  Replay: {code(command_line(case.replay))}"


def _waiver(waiver: Waiver) -> str:
    where = f"{escaped(waiver.requirement)} in {escaped(waiver.cell)}, {code(waiver.finding or waiver.scope)}"
    expiry = f", expires {escaped(waiver.expires)}" if waiver.expires and waiver.state != "expired" else ""
    said = f"{escaped(waiver.reason)} ({escaped(waiver.link)}{expiry})"
    return f"- **{escaped(waiver.state_text)}**: {where}: {said}"


def _not_verified(entry: overview.NotVerified) -> str:
    where = f"**{entry.row.verdict.value}** {escaped(entry.requirement)} in {escaped(entry.row.label)}"
    return f"- {where}: {escaped(entry.row.reason or 'no reason was recorded')}"


def _dropped(one: DroppedKind) -> str:
    since = f"case {one.case} of {one.requirement}" if one.case else "the calibration"
    narrows = f" This narrows {', '.join(one.narrows)}." if one.narrows else ""
    return f"- **{escaped(one.kind)}**, since {escaped(since)} in {escaped(one.cell)}: {escaped(one.why)}{narrows}"


def _growth(one: Growth) -> str:
    return f"- {escaped(one.process)}, {one.what}: {escaped(growth_text(one))}"
