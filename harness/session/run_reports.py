"""Prepares the report folder, and writes the files of each case and, at the end of the run, the reports."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from pathlib import Path

import msgspec

from coldproof.harness.case.bug_report import bug_report
from coldproof.harness.case.known_issue_proposals import write_proposals
from coldproof.harness.case.known_issues import Waivers, today
from coldproof.harness.case.reproducer.script import reproducer
from coldproof.harness.event_log import EventLog
from coldproof.harness.options import PROPOSED_SUFFIX, Options, UsageError
from coldproof.harness.release.run.attestation import write_attestation
from coldproof.harness.release.run.manifest import seal
from coldproof.harness.release.run.record import Qualification, environment_facts
from coldproof.harness.session.environment import environment
from coldproof.harness.session.terminal.terminal import Terminal
from coldproof.reports.assemble.assemble import EXIT_HARNESS, assemble, read_events
from coldproof.reports.exports.write import write_all, write_text
from coldproof.reports.format.text import one_line, storable, visible
from coldproof.reports.schema.case import Case
from coldproof.reports.schema.results import Results, Waiver, encode

# Written by an earlier run, in addition to its cases, logs and proposals.
PAGES = ("index.html", "badge.svg", "junit.xml", "summary.md")
RESULTS = "results.json"
RUN_FILES = ("events.ndjson", RESULTS, "manifest.json", *PAGES)
LONGEST_REASON = 400  # characters of a reason that are printed


class RunReports:
    """Writes into the report folder of one run. `waivers` returns the known issues for an engine version."""

    def __init__(
        self,
        options: Options,
        log: EventLog,
        *,
        waivers: Callable[[str | None], Waivers],
        qualification: Qualification | None,
    ) -> None:
        self.options, self.log = options, log
        self.waivers, self.qualification = waivers, qualification
        self.terminal: Terminal | None = None

    @functools.cached_property
    def environment(self) -> dict[str, str]:
        """Return the facts about the machine. They are read once for each run."""
        return {**environment(), **(environment_facts(self.qualification) if self.qualification is not None else {})}

    def save_case(self, case: Case, statement: str) -> None:
        """Write cases/ID.json, cases/ID.py and cases/ID.md, and emit the event that the report is made from."""
        case = msgspec.convert(storable(msgspec.to_builtins(case)), Case)
        folder = self.options.report_dir / "cases"
        (folder / f"{case.id}.json").write_bytes(encode(case))
        (folder / f"{case.id}.py").write_text(reproducer(case))
        report = bug_report(case, statement=statement, environment=self.environment)
        (folder / f"{case.id}.md").write_text(report)
        self.log.emit("case", case=case)

    def finish(self, *, interrupted: bool) -> int:
        """Write the reports from the events, and return the exit code of the run."""
        results = assemble(read_events(self.log.path))
        version = results.engine.version if results.engine else None
        waivers = self.waivers(version).report(results.cases, results.requirements)
        self.log.emit("waivers", waivers=waivers)
        self.propose(results, waivers)
        self.log.emit("run_finished", complete=not interrupted and not results.problem)
        results = assemble(read_events(self.log.path))
        try:
            write_all(results, self.options.report_dir)
            if self.options.json is not None:
                write_text(self.options.json, (self.options.report_dir / RESULTS).read_text())
            if self.qualification is not None:
                seal(self.options.report_dir)
                write_attestation(self.options.report_dir, results, self.qualification)
        except OSError as problem:
            self.log.emit("problem", message=f"cannot write the report: {problem}", usage=False)
            return EXIT_HARNESS
        self.print_summary(results)
        return results.exit_code

    def propose(self, results: Results, waivers: list[Waiver]) -> None:
        """Write proposed known issues if requested. No verdict depends on this, so a failure is only an event."""
        path, entries, problem = self.options.proposals, 0, ""
        if path is None:
            return
        try:
            entries = write_proposals(path, results, waivers, folder=self.options.report_dir, today=today())
        except OSError as failure:
            problem = visible(str(failure))
        self.log.emit("proposed", path=visible(str(path)), entries=entries, problem=problem)

    def print_summary(self, results: Results) -> None:
        """Print the headline and the path of the report on the terminal."""
        if self.terminal is None or self.terminal.closed:
            return
        with contextlib.suppress(OSError):  # the report is written, and the terminal may be closed
            for words in ("", *requirement_lines(results)) if self.options.json is not None else ():
                self.terminal.line(words)
            self.terminal.print_summary(results, self.options.report_dir)
            if self.qualification is not None:
                self.terminal.line(f"bundle: coldproof verify {self.options.report_dir}")


def requirement_lines(results: Results) -> list[str]:
    """Return one line for each requirement: id, verdict, and the reason where there is one."""
    said = ((f"{one.id} {one.verdict.value}", one.reason) for one in results.requirements)
    return [f"{words}: {one_line(reason)[:LONGEST_REASON]}" if reason else words for words, reason in said]


def prepare_copy(path: Path) -> None:
    """Create the folder of --json and delete the file of an earlier run: a caller must not read it for this one's.

    Raises UsageError.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
    except OSError as problem:
        raise UsageError(f"--json {path}: cannot be written ({problem.strerror}); choose another file") from problem


def prepare_folder(folder: Path, *, clear: bool) -> None:
    """Create the report folder and, with `clear`, delete the files of an earlier run."""
    (folder / "cases").mkdir(parents=True, exist_ok=True)
    if not clear:
        return
    for pattern in (*RUN_FILES, f"*{PROPOSED_SUFFIX}", "engine-*.log", "cases/*"):
        for old in folder.glob(pattern):
            old.unlink()
