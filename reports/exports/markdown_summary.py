"""The run as Markdown for a CI step summary: the verdict, the causes, and what was not tested.

Invariant: it has at most LARGEST bytes whatever happened. What does not fit is counted, and the page has it.
"""

from __future__ import annotations

from collections.abc import Sequence

from coldproof.harness.schema.results import Results
from coldproof.reports.format.markdown import code, escaped, table
from coldproof.reports.format.text import duration, many, report_name
from coldproof.reports.views import overview, switches
from coldproof.reports.views.cause_view import SIGN, CauseView, State
from coldproof.reports.views.causes import cause_views, listed, unconfirmed_words
from coldproof.reports.views.notes import notes
from coldproof.reports.views.untested import Untested, untested
from coldproof.reports.views.verdict_sentence import verdict_sentence

LARGEST = 8000  # bytes
_HEAD, _SWITCHES, _NOTES = 0.23, 0.27, 0.08  # shares of these parts
_CAUSES = 0.7  # of the rest, if all of them and all that was not tested do not fit
_TITLE, _SENTENCE = 160, 700  # characters


def summary_markdown(results: Results, *, largest: int = LARGEST) -> str:
    """Return the summary: what a reader of a CI job needs to decide what to do next. `largest`: its bytes."""
    causes = cause_views(results)
    head = fitting(_head(results, causes), _HEAD * largest)
    end = _where(results)
    if overview.failed_selftests(results):
        body = fitting(_self_test(results), largest - size(head) - size(end))
    else:
        first = fitting(_switches(results), _SWITCHES * largest)
        last = fitting(_notes(results), _NOTES * largest)
        left, lacking = largest - size([*head, *first, *last, *end]), _untested(untested(results))
        shown = fitting(_causes(causes), max(left - size(lacking), _CAUSES * left))
        body = [*first, *shown, *fitting(lacking, left - size(shown)), *last]
    return "\n".join([*head, *body, *end]).rstrip() + "\n"


def size(lines: Sequence[str]) -> int:
    """Return the bytes of these lines in the file."""
    return sum(len(line.encode("utf-8", "replace")) + 1 for line in lines)


def fitting(lines: Sequence[str], most: float) -> list[str]:
    """Return the lines if they have at most this many bytes; else the first ones, and how many more there are."""
    if size(lines) <= most:
        return list(lines)
    kept = list(lines)
    while kept and size([*kept, _more(len(lines)), ""]) > most:
        kept.pop()
    return [*kept, "", _more(len(lines) - len(kept))] if kept else [_more(len(lines))]


def _more(count: int) -> str:
    return f"and {many(count, 'more line')}, in index.html"


def _head(results: Results, causes: Sequence[CauseView]) -> list[str]:
    marks = "".join(f"{mark}: " for mark in overview.banners(results))
    glyph = overview.GLYPH[overview.headline_style(results)]
    sentence = verdict_sentence(results, causes)
    lines = [f"## Coldproof: {glyph} {marks}prefix cache {overview.run_status(results).value}", ""]
    lines += [f"**{escaped(sentence.lead, _SENTENCE)}**", ""]
    if results.problem:
        lines += [f"**The run could not go on:** {escaped(results.problem, _SENTENCE)}", ""]
    if sentence.more:
        lines += [escaped(sentence.more, _SENTENCE), ""]
    facts = f"{overview.engine_name(results)}, profile {results.profile}, seed {results.seed}"
    lines += [f"{escaped(facts, 200)}, {duration(results.duration_s)}, exit code {results.exit_code}", ""]
    if results.fleet:
        lines += [f"{many(len(results.fleet), 'run')} of a fleet: {overview.fleet_counts(results)}", ""]
    return lines


def _switches(results: Results) -> list[str]:
    found = results.switches
    if found is None:
        return []
    rows = (
        (code(row.name), escaped(switches.added(row)), escaped(switches.safety(row)), code(row.how))
        for row in found.missing
    )
    heads = ("Missing switch", "What it would add", "In production", "How")
    return [escaped(switches.now_testable(found)), "", *(table(heads, rows) if found.missing else [])]


def _causes(causes: Sequence[CauseView]) -> list[str]:
    if not causes:
        return []
    own, folded = listed(causes)
    last = [f"- **{State.UNCONFIRMED.value}**: {escaped(unconfirmed_words(folded), _SENTENCE)}"] if folded else []
    return ["### Causes, worst first", "", *map(_cause, own), *last, ""]


def _cause(cause: CauseView) -> str:
    state = "" if cause.is_waived else f"**{cause.state.value}**: "
    parts = [
        escaped(cause.broke, 200),
        escaped(cause.attributed, 160),
        escaped(cause.releases, 60),
        link(cause.link),
        cause.mending,
    ]
    if cause.fails:
        parts += [f"replay {code(cause.replay)}" if cause.replay else "", code(cause.script) if cause.script else ""]
    how_bad = f"{SIGN[cause.severity]} {cause.severity.value}"
    return f"- {how_bad}: {state}{escaped(cause.title, _TITLE)} ({'; '.join(filter(None, parts))})"


def link(address: str) -> str:
    """Return the address of a GitHub issue or pull request as a link; any other one as text."""
    name = report_name(address)
    return f"[{escaped(name)}]({address})" if name != address else escaped(address, 120)


def _untested(rows: Sequence[Untested]) -> list[str]:
    if not rows:
        return []
    return ["### Not tested, and what would change that", "", *map(_not_tested, rows), ""]


def _not_tested(row: Untested) -> str:
    ids = escaped(", ".join(row.requirements), 160)
    verdict = f"{overview.GLYPH[row.verdict]} {row.verdict.value}"
    why, change = escaped(row.why or "no reason recorded", 200), escaped(row.change, 160)
    return f"- {verdict}: {ids}: {why}. To change that: {change}"


def _notes(results: Results) -> list[str]:
    found = notes(results)
    return ["### Also", "", *(f"- {escaped(words, 300)}" for words in found), ""] if found else []


def _self_test(results: Results) -> list[str]:
    rows = ((escaped(row.planted), escaped(row.said)) for row in overview.failed_selftests(results))
    return ["### Failed self-tests of the detector", "", *table(("Planted fault", "Detector's result"), rows)]


def _where(results: Results) -> list[str]:
    files = "`index.html` (the whole report), `results.json`, `junit.xml`"
    cases = ", and for each case `cases/ID.md`, an issue ready to file" if results.cases else ""
    return [f"In the report folder: {files}{cases}.", ""]
