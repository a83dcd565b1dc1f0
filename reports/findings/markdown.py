"""Renders docs/findings.md from the records. Equal records give equal bytes."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence

from coldproof.harness.schema.findings import FindingRecord
from coldproof.reports.findings.tables import (
    by_engine,
    count_table,
    counts_in_words,
    found_in_words,
    headline,
    ranked,
)
from coldproof.reports.format.markdown import escaped, table
from coldproof.reports.format.text import report_name

INTRODUCTION = """\
Every root cause of a violation that Coldproof has found in an engine, as far as it is known. One defect is one finding,
however many requirements, cells and failure classes meet it. Each has a folder in [`findings/`](../findings) with its
record and the smallest case, and many a script of at most 25 lines that uses the engine's own API and nothing of
Coldproof. `coldproof findings --script NAME` prints it or, without one, makes a longer one from the case, and
`--issue NAME` makes the report to file.

* **Severity** is the worst effect that was shown. *Foreign data*: an answer has content of another request, adapter or
  tenant. *Remark*: nothing that the engine documents forbids it, so that it is not counted as a root cause
  and makes [no requirement violated](known-issues.md#remarks).
* **Status** is what is publicly known. *New*: a search in issues, pull requests and documentation, of which each record
  has the queries, the date and the nearest results, found no report of the same cause. The searched copies are not
  complete, and a search cannot show that there is no report. *By design* and *documented limitation* quote the engine's
  own sentence.

`coldproof findings` lists them, `coldproof findings --replay` replays them on the engine that is installed, and every
run begins with those of its engine. `coldproof findings --markdown docs/findings.md` writes this page.

Many also have a repair, `repair.py` in their folder: a few lines that mend the cause in the engine that is installed.
`coldproof findings --replay NAME --repairs NAME` shows that the case is gone with it, `coldproof run --repairs known`
tests the engine with all of them, and `coldproof findings --matrix` replays every case under every repair:
[repairs](guide.md#repairs)."""


def findings_markdown(
    records: Sequence[FindingRecord], titles: Mapping[str, str], scripted: Container[str] = ()
) -> str:
    """Return the page. `titles`: of the engines, by their folders. `scripted`: the ids of those with a short script."""
    return "\n".join(lines(records, titles, scripted)).rstrip() + "\n"


def lines(records: Sequence[FindingRecord], titles: Mapping[str, str], scripted: Container[str]) -> Iterator[str]:
    """Yield the lines of the page."""
    severities, statuses = counts_in_words(records)
    yield from ("# Findings", "", f"{headline(records)}.", "", f"* {severities}.", f"* {statuses}.", "")
    heads, counts = count_table(records)
    yield from table(heads, counts, numbers=heads[1:])
    yield from (INTRODUCTION, "")
    yield from table(("severity", "status", "finding", "requirement", "releases"), map(row, ranked(records)))
    groups = by_engine(records)
    for engine, group in groups.items():
        yield from (f"## {titles.get(engine, engine)}", "")
        for record in group:
            yield from section(record, short=record.id in scripted)


def row(record: FindingRecord) -> tuple[str, ...]:
    """Return the row of a finding, with a link to its section."""
    return (
        record.severity.value,
        record.status.value,
        f"[{record.id}](#{anchor(record)})",
        record.requirement,
        record.releases,
    )


def anchor(record: FindingRecord) -> str:
    """Return the anchor that Markdown renderers give the heading of a finding."""
    return record.id.replace("/", "")


def section(record: FindingRecord, *, short: bool) -> Iterator[str]:
    """Yield the section of one finding. `short`: it has a short script."""
    yield from (f"### {record.id}", "", f"**{record.title}.** {record.cause.strip()}", "")
    yield f"* Severity: {record.severity.value}"
    yield from status(record)
    yield f"* Requirement: {record.requirement}, `{record.signature}`"
    yield f"* Seen on: {record.releases}"
    yield f"* Source: {'; '.join(f'`{place}`' for place in record.source)}"
    yield f"* Why it is a cause of its own: {record.distinct}"
    yield f"* Found by: {found_in_words(record)}"
    if record.rate:
        yield f"* Rate: {record.rate}"
    where = f"no case: {record.no_case}" if record.no_case else f"[record and case](../findings/{record.id})"
    script = f"[script](../findings/{record.id}/script.py), " if short else ""
    yield from (f"* Files: {script}{where}", "")


def status(record: FindingRecord) -> Iterator[str]:
    """Yield the status of a finding, with its links and the search behind it."""
    links = f": {', '.join(link(target) for target in record.upstream)}" if record.upstream else ""
    yield f"* Status: {record.status.value}{links}"
    if record.with_pull_request:
        yield f"* With the pull request: {record.with_pull_request}"
    if record.contract:
        yield f'* Contract: "{escaped(record.contract.sentence)}" ({record.contract.place})'
    if record.search:
        queries = "; ".join(f"*{escaped(query)}*" for query in record.search.queries)
        yield f"* Searched on {record.search.date}: {queries}"
        yield from (f"  * {link(hit.link)}: {hit.note}" for hit in record.search.nearest)


def link(target: str) -> str:
    """Return a link to a public page, under its short name."""
    return f"[{report_name(target)}]({target})"
