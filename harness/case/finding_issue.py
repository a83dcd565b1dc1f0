"""Writes the report of a finding, to file with the maintainers: one screen with cause, script and repair.

The cause stands first. The steps are the hand-made script where there is one, else those of the case. Text of engines
is escaped, or inside a fence that it cannot close.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from coldproof.adapters.registry import title_of
from coldproof.adapters.spec.repair import Repair
from coldproof.harness.case.bug_report import anonymous, server_command, steps
from coldproof.harness.case.reproducer.script import recorded_engine, reproduction
from coldproof.harness.schema.case import Case
from coldproof.harness.schema.findings import FindingRecord, FindingStatus
from coldproof.reports.format.markdown import code, escaped, fenced

MAX_CHARACTERS = 2000  # characters of a paragraph
MAX_LINKS, MAX_WORDS = 2, 8
KINDS = {FindingStatus.BY_DESIGN: "Question", FindingStatus.LIMITATION: "Question"}  # other findings are bugs


def issue_text(
    record: FindingRecord, case: Case, *, script: str | None = None, repair: Repair | None = None, diff: str = ""
) -> str:
    """Return the report. `script`: the hand-made one. `diff`: the repair as one, if the engine is installed."""
    paragraphs = [heading(record, case), record.cause.strip(), places(record)]
    paragraphs += ["## Steps", *(short_steps(record, script) if script else steps_of_case(record, case))]
    paragraphs += [versions(record, case), *mended(repair, diff), *related(record), with_coldproof(record, case)]
    return "\n\n".join(filter(None, paragraphs)) + "\n"


def heading(record: FindingRecord, case: Case) -> str:
    """Return the title of the report."""
    kind = KINDS.get(record.status, "Bug")
    return f"# [{kind}] {title_of(record.engine)} {case.engine_version}: {record.title}"


def places(record: FindingRecord) -> str:
    """Return the files and functions of the engine's source."""
    return "\n".join(f"* `{place}`" for place in record.source)


def short_steps(record: FindingRecord, script: str) -> Iterator[str]:
    """Yield the hand-made script, and what it prints."""
    _, _, body = script.partition('"""\n\n')  # its first line says what the title of the report says
    yield fenced((body or script).rstrip(), "python")
    if record.prints:
        yield f"Observed and expected: {code(record.prints)}"


def steps_of_case(record: FindingRecord, case: Case) -> Iterator[str]:
    """Yield the steps of the case with the configuration, what was observed, and what was expected."""
    dialect, engine = reproduction(case), recorded_engine(case)
    if command := server_command(dialect, engine):
        yield fenced(anonymous(without_variables(command, dialect.left_out)))
    yield "\n".join(f"{number}. {escaped(words, MAX_CHARACTERS)}" for number, words in enumerate(steps(case), 1))
    yield f"Observed: {escaped(anonymous(case.sentence), MAX_CHARACTERS)}"
    yield f"Expected: {expected(case)}. `coldproof findings --script {record.id}` makes a stand-alone script of this."


def without_variables(command: str, names: tuple[str, ...]) -> str:
    """Return a command without these variables before it."""
    for name in names:
        command = re.sub(rf"\b{re.escape(name)}=\S+ ", "", command)
    return command


def expected(case: Case) -> str:
    """Return what was expected of the failing request."""
    differs = case.first_difference is not None
    tokens = [row.expected for row in case.tokens if differs and row.expected is not None]
    return f"the answer of a cold start, tokens {code(str(tokens))}" if tokens else "what a cold start shows"


def versions(record: FindingRecord, case: Case) -> str:
    """Return the version, the releases on which it was seen, and the circumstances."""
    packages = ((name, version) for name, version in sorted(record.found.environment.items()) if name != "python")
    around = ", ".join(escaped(f"{name} {version}") for name, version in packages)
    rate = f" {record.rate}" if record.rate else ""
    return f"Version: {escaped(case.engine_version or 'unknown')} ({around}). Seen on {record.releases}.{rate}"


def mended(repair: Repair | None, diff: str) -> Iterator[str]:
    """Yield the repair: what it changes, and the diff or, where there is none, why that is right."""
    if repair is not None:
        yield f"## A change that mends it\n\n{repair.title if diff else repair.text}"
        if diff:
            yield fenced(diff.rstrip(), "diff")


def related(record: FindingRecord) -> Iterator[str]:
    """Yield the nearest public reports, with the first words of their notes."""
    notes = {hit.link: shortened(hit.note) for hit in record.search.nearest} if record.search else {}
    links = list(dict.fromkeys([*record.upstream, *notes]))[:MAX_LINKS]
    if links:
        yield "Related:\n\n" + "\n".join(f"* {link}{f' ({notes[link]})' if link in notes else ''}" for link in links)


def shortened(note: str) -> str:
    """Return the first words of a note."""
    words = note.split()
    return " ".join(words[:MAX_WORDS]) + (" ..." if len(words) > MAX_WORDS else "")


def with_coldproof(record: FindingRecord, case: Case) -> str:
    """Return how the case is run again."""
    return f"With Coldproof (requirement {escaped(record.requirement)}): {code(case.replay)}"
