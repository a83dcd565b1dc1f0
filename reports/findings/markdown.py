"""Renders docs/findings.md from the records. Equal records give equal bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from coldproof.harness.schema.findings import FindingRecord
from coldproof.reports.findings.tables import by_engine, found_in_words, headline, is_reported
from coldproof.reports.format.markdown import table

INTRODUCTION = """\
Every root cause of a violation that Coldproof has found in an engine, as far as it is known. One defect is one finding,
however many requirements, cells and failure classes meet it. Each has a folder in [`findings/`](../findings) with its
record and the smallest case. `coldproof findings --script NAME` makes its stand-alone script from them, and
`--issue NAME` the report to file.

`coldproof findings` lists them, `coldproof findings --replay` replays them on the engine that is installed, and every
run begins with those of its engine. `coldproof findings --markdown docs/findings.md` writes this page.

Many also have a repair, `repair.py` in their folder: a few lines that mend the cause in the engine that is installed.
`coldproof findings --replay NAME --repairs NAME` shows that the case is gone with it, `coldproof run --repairs known`
tests the engine with all of them, and `coldproof findings --matrix` replays every case under every repair:
[repairs](guide.md#repairs)."""


def findings_markdown(records: Sequence[FindingRecord], titles: Mapping[str, str]) -> str:
    """Return the page. `titles`: of the engines, by their folders."""
    return "\n".join(lines(records, titles)).rstrip() + "\n"


def lines(records: Sequence[FindingRecord], titles: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of the page."""
    yield from ("# Findings", "", f"{headline(records)}.", "", INTRODUCTION, "")
    groups = by_engine(records)
    rows = (row(record) for group in groups.values() for record in group)
    yield from table(("finding", "requirement", "failure", "status", "releases"), rows)
    for engine, group in groups.items():
        yield from (f"## {titles.get(engine, engine)}", "")
        for record in group:
            yield from section(record)


def row(record: FindingRecord) -> tuple[str, ...]:
    """Return the row of a finding, with a link to its section."""
    return (
        f"[{record.id}](#{anchor(record)})",
        record.requirement,
        record.failure_class.value,
        record.status.value,
        record.releases,
    )


def anchor(record: FindingRecord) -> str:
    """Return the anchor that Markdown renderers give the heading of a finding."""
    return record.id.replace("/", "")


def section(record: FindingRecord) -> Iterator[str]:
    """Yield the section of one finding."""
    yield from (f"### {record.id}", "", f"**{record.title}.** {record.cause.strip()}", "")
    yield f"* Requirement: {record.requirement}, `{record.signature}`"
    yield f"* Status: {record.status.value}; {record.upstream if is_reported(record) else 'not reported'}"
    yield f"* Seen on: {record.releases}"
    yield f"* Source: {'; '.join(f'`{place}`' for place in record.source)}"
    yield f"* Why it is a cause of its own: {record.distinct}"
    yield f"* Found by: {found_in_words(record)}"
    if record.rate:
        yield f"* Rate: {record.rate}"
    where = f"no case: {record.no_case}" if record.no_case else f"[record and case](../findings/{record.id})"
    yield from (f"* Files: {where}", "")
