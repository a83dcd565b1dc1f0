"""`coldproof findings`: lists the known root causes, replays them, renders their page, and proposes new ones.

Exit code: 0 listed or written, or every finding that could be replayed is as its record says; 1 one is not; 3 a run
ended without results, or a file cannot be written; 4 wrong usage; 5 none could be replayed here. `--matrix`: 1 if a
repair removes a case that it does not name, or leaves one that it does.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Sequence
from pathlib import Path

from coldproof.adapters.registry import ENGINES
from coldproof.adapters.spec.repair import RepairError
from coldproof.harness.case.finding_folder import report_of, script_of
from coldproof.harness.case.finding_records import read_findings, read_records, scripted
from coldproof.harness.case.repair_patch import patch_of
from coldproof.harness.case.repairs import NONE, read_repairs, repairing
from coldproof.harness.cli.finding_matrix import drawn, square_of
from coldproof.harness.cli.finding_proposals import proposals, written_proposal
from coldproof.harness.cli.finding_runs import Outcome, replays_of
from coldproof.harness.cli.io import FAILED, Subcommand, added_to, argument, say, write, write_stdout
from coldproof.harness.options import UsageError
from coldproof.harness.schema.exit_codes import EXIT_NOTHING
from coldproof.harness.schema.findings import FindingRecord, ReplayResult
from coldproof.harness.session.environment import coldproof_version
from coldproof.reports.findings.markdown import findings_markdown
from coldproof.reports.findings.page import render_findings
from coldproof.reports.findings.tables import by_engine, counts_in_words, headline
from coldproof.reports.format.text import one_line

EXIT_DIFFERENT = 1


def run(options: argparse.Namespace) -> int:
    """Do what the options ask for, and return the exit code. Raises Refusal or UsageError."""
    records = chosen(options.names)
    if options.matrix:
        return matrix(records, [name for name in options.only.split(",") if name], together=options.together)
    if options.replay:
        return replay(records, options.report_dir, options.repairs)
    if options.collect:
        return collect(options.collect, options.out)
    if options.script:
        write_stdout(script(record_of(options.script), from_case=options.from_case))
        return 0
    if options.issue:
        write_stdout(issue(record_of(options.issue)))
        return 0
    if options.patch:
        write_stdout(patch(record_of(options.patch)))
        return 0
    if options.markdown is not None:
        write(options.markdown, findings_markdown(records, titles(), scripted(records)))
    if options.html is not None:
        write(options.html, render_findings(records, titles(), version=coldproof_version()))
    if not (options.markdown or options.html):
        say(listing(records))
    return 0


def chosen(names: Sequence[str]) -> list[FindingRecord]:
    """Return the records with these ids or of these engines; all without names. Raises UsageError for another name."""
    records = read_records()
    for name in names:
        if name not in records and all(record.engine != name for record in records.values()):
            raise UsageError(f"unknown finding or engine {name!r}; `coldproof findings` lists them")
    return [record for record in records.values() if not names or {record.id, record.engine} & set(names)]


def script(record: FindingRecord, *, from_case: bool) -> str:
    """Return the script of a finding. Raises UsageError for a finding that has none."""
    (finding,) = read_findings([record])
    try:
        return script_of(finding, from_case=from_case)
    except FileNotFoundError:
        raise UsageError(f"{record.id} has no script, because it has no case: {record.no_case}") from None


def issue(record: FindingRecord) -> str:
    """Return the report of a finding, with its repair as a diff if the engine is installed.

    Raises UsageError for a finding that has no report.
    """
    (finding,) = read_findings([record])
    repair = repairing(record.id, read_repairs(record.engine).values())
    diff = ""
    if repair is not None:
        with contextlib.suppress(RepairError):  # not installed, another release, or no diff: the text says what changes
            diff = patch_of(repair)
    try:
        return report_of(finding, repair=repair, diff=diff)
    except FileNotFoundError:
        raise UsageError(f"{record.id} has no report, because it has no case: {record.no_case}") from None


def patch(record: FindingRecord) -> str:
    """Return the repair of a finding as a diff of the installed engine. Raises UsageError where there is none."""
    repair = repairing(record.id, read_repairs(record.engine).values())
    if repair is None:
        raise UsageError(f"{record.id} has no repair")
    try:
        return patch_of(repair)
    except RepairError as problem:
        raise UsageError(str(problem)) from problem


def titles() -> dict[str, str]:
    """Return the engines' names for readers."""
    return {name: spec.title or name for name, spec in ENGINES.items()}


def listing(records: Sequence[FindingRecord]) -> str:
    """Return a line for each finding, in columns, and their counts."""
    rows = [
        (one.id, one.severity.value, one.status.value, one.requirement, one.releases)
        for group in by_engine(records).values()
        for one in group
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    texts = [
        "  ".join([*(part.ljust(width) for part, width in zip(row, widths, strict=False)), row[-1]]) for row in rows
    ]
    return "\n".join([*texts, "", headline(records), *counts_in_words(records)])


def record_of(name: str) -> FindingRecord:
    """Return the record with this id. Raises UsageError for another name."""
    records = read_records()
    if name not in records:
        raise UsageError(f"unknown finding {name!r}; `coldproof findings` lists them")
    return records[name]


def matrix(records: Sequence[FindingRecord], only: Sequence[str], *, together: bool) -> int:
    """Replay findings under each repair, print the square and what is off its diagonal, and return the exit code."""
    square = square_of(records, only, say, together=together)
    say(drawn(square))
    off = list(square.off())
    for one in off:
        say(one_line(one))
    say(f"{len(square.records)} cases under {len(square.repairs)} repairs: {len(off)} off the diagonal")
    return EXIT_DIFFERENT if off else 0


def replay(records: Sequence[FindingRecord], report_dir: Path, repairs: str = NONE) -> int:
    """Replay findings on the installed engines, say the result of each, and return the exit code."""
    outcomes = list(replays_of(records, report_dir, say, repairs))
    for one in outcomes:
        say(line_of(one))
    ran = [one for one in outcomes if one.result is not ReplayResult.NOT_RUN]
    different = [one for one in ran if not one.as_recorded]
    say(f"{len(ran)} of {len(outcomes)} findings replayed, {len(ran) - len(different)} as recorded")
    if any(one.broken for one in outcomes):
        return FAILED
    return EXIT_NOTHING if not ran else EXIT_DIFFERENT if different else 0


def line_of(one: Outcome) -> str:
    """Return the result of one replay."""
    mark = "" if one.result is ReplayResult.NOT_RUN or one.as_recorded else "  NOT AS RECORDED"
    version = f" on {one.version}" if one.version else ""
    repaired = " with its repair" if one.repaired else ""
    words = f": {one.words}" if one.words and one.result is not ReplayResult.FAILS else ""
    return f"{one.record.id}: {one.result.value}{version}{repaired} ({one.seconds:.1f} s){mark}{words}"


def collect(folders: Sequence[Path], out: Path) -> int:
    """Write a proposed folder for each cause in these reports that no finding covers, and return the exit code."""
    known = read_findings(read_records().values())
    proposed = proposals(folders, known)
    for one in proposed:
        with added_to(out):
            said = f"{one.case.requirement} in {one.case.cell}: {one.case.signature}"
            say(one_line(f"{written_proposal(one, out)}: {said}"))
    say(
        f"{len(proposed)} proposals. Complete each record.toml, move its folder to findings/, and name it in the known "
        "issue"
    )
    return 0


FINDINGS = Subcommand(
    "list the known root causes in engines; replay them, render their page, or propose new ones",
    run,
    argument("names", nargs="*", metavar="NAME", help="an engine's folder, or the id of a finding (default: all)"),
    argument("--replay", action="store_true", help="replay their cases on the engines that are installed"),
    argument(
        "--repairs",
        default=NONE,
        metavar="NAME,...",
        help="with --replay: plant the repairs of these findings, or of all that are 'known' (default: none)",
    ),
    argument(
        "--matrix",
        action="store_true",
        help="replay the cases of these findings under each repair: each must be gone with its own repair alone",
    ),
    argument("--only", default="", metavar="NAME,...", help="with --matrix: only the repairs of these findings"),
    argument(
        "--together",
        action="store_true",
        help="with --matrix: replay each case under all other repairs at once, and alone only where that changes it",
    ),
    argument(
        "--report-dir",
        type=Path,
        default=Path("coldproof-report/findings"),
        metavar="DIR",
        help="folder for the reports of --replay (default: coldproof-report/findings)",
    ),
    argument("--markdown", type=Path, metavar="FILE", help="write the page of the findings as Markdown"),
    argument("--html", type=Path, metavar="FILE", help="write the page of the findings as HTML"),
    argument("--script", metavar="NAME", help="print the script of a finding: the short one, if there is one"),
    argument("--from-case", action="store_true", help="with --script: the long one, which is made from the case"),
    argument("--patch", metavar="NAME", help="print its repair as a diff of the engine that is installed"),
    argument("--issue", metavar="NAME", help="print the report of a finding, to file with the maintainers"),
    argument(
        "--collect",
        type=Path,
        nargs="+",
        metavar="REPORT",
        help="propose a folder for each cause in these reports that no finding covers",
    ),
    argument(
        "--out",
        type=Path,
        default=Path("coldproof-report/proposed-findings"),
        metavar="DIR",
        help="folder for the proposals of --collect (default: coldproof-report/proposed-findings)",
    ),
)
