"""Opens the report folder, and writes the files of each case and, at the end of the run, the reports.

A file that cannot be written ends the run with exit code 3 and one line; the verdicts so far are printed.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from coldproof.adapters.common.redact import redacted_data
from coldproof.harness.case.bug_report import bug_report
from coldproof.harness.case.finding_facts import facts_of
from coldproof.harness.case.known_issue_proposals import write_proposals
from coldproof.harness.case.known_issues import Waivers, today
from coldproof.harness.case.replay_command import own_options
from coldproof.harness.case.reproducer.script import reproducer
from coldproof.harness.event_log import EventLog
from coldproof.harness.options import Options, UsageError
from coldproof.harness.release.run.attestation import write_attestation
from coldproof.harness.release.run.manifest import seal
from coldproof.harness.release.run.record import Qualification, environment_facts
from coldproof.harness.schema.case import TRACE, Case
from coldproof.harness.schema.exit_codes import EXIT_HARNESS
from coldproof.harness.schema.results import Results, Waiver, encode
from coldproof.harness.schema.stored_files import read_lines
from coldproof.harness.session.environment import environment
from coldproof.harness.session.terminal.terminal import Terminal
from coldproof.reports.assemble.assemble import Event, assemble, events_of
from coldproof.reports.assemble.unreadable_events import with_problem_of_gaps
from coldproof.reports.exports.case_trace import trace_json
from coldproof.reports.exports.write import write_all, write_bytes, write_text
from coldproof.reports.files.own_folder import SEAL, FolderRefused, OwnFolder, claim, make_sub_folder
from coldproof.reports.format.text import one_line, storable, visible

PAGES = ("index.html", "badge.svg", "ctrf.json", "junit.xml", "summary.md")
RESULTS = "results.json"
CASES = "cases"
RUN_FILES = ("events.ndjson", RESULTS, *PAGES)
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
        self.ended: Results | None = None  # of a run that wrote its report and has not printed its end

    @functools.cached_property
    def environment(self) -> dict[str, str]:
        """Return the facts about the machine. They are read once for each run."""
        return {**environment(), **(environment_facts(self.qualification) if self.qualification is not None else {})}

    def save_case(self, case: Case, statement: str) -> None:
        """Write the files of a case, and emit the event that the report is made from."""
        case = as_stored(case)
        try:
            write_case_files(case, self.options.report_dir, statement=statement, environment=self.environment)
        except OSError as problem:
            self.log.failed(problem)
        self.log.emit("case", case=case)

    def events(self) -> list[Event]:
        """Return the events of this run, those that could not be written too."""
        written = events_of(read_lines(self.log.path)) if self.log.in_place() else []
        return with_problem_of_gaps([*written, *events_of(self.log.unwritten)])

    def finish(self, *, interrupted: bool) -> int:
        """Write the reports from the events, and return the exit code of the run."""
        if not self.log.in_place():
            return self.lost("the report folder was moved or deleted while the run wrote into it", [])
        results = assemble(self.events())
        version = results.engine.version if results.engine else None
        waivers = self.waivers(version).report(results.cases, results.requirements)
        self.log.emit("waivers", waivers=waivers)
        self.log.emit("records", records=facts_of(msgspec.structs.replace(results, waivers=waivers)))
        self.propose(results, waivers)
        self.log.emit("run_finished", complete=not interrupted and not results.problem)
        results = self.concluded(assemble(self.events()))
        try:
            write_all(results, self.options.report_dir)
            if self.options.json is not None:
                write_text(self.options.json, (self.options.report_dir / RESULTS).read_text())
            if self.qualification is not None:
                seal(self.options.report_dir)
                write_attestation(self.options.report_dir, results, self.qualification)
        except OSError as problem:
            return self.lost(unwritable(problem), requirement_lines(results))
        self.print_summary(results)
        return results.exit_code

    def concluded(self, results: Results) -> Results:
        """Return the results with the exit code of a run that could not write all of its files, if that is so."""
        return results if self.log.failure is None else msgspec.structs.replace(results, exit_code=EXIT_HARNESS)

    def lost(self, problem: str, lines: Sequence[str]) -> int:
        """Print what would be in the report, and why there is none. Return the exit code."""
        self.log.emit("problem", message=problem, usage=False)
        self.print_lines(["", *lines, f"coldproof: {problem}"])
        return EXIT_HARNESS

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
        """Print one line for each requirement if that was asked for, and keep the end of the run for `print_end`."""
        if self.terminal is None or self.terminal.closed:
            return
        if self.options.json is not None or self.log.failure is not None:
            self.print_lines(["", *requirement_lines(results)])
        self.ended = results

    def print_end(self) -> None:
        """Print the end of the run, behind all that pytest prints: the last line is the path of the report."""
        results, self.ended = self.ended, None
        if results is None or self.terminal is None or self.terminal.closed:
            return
        bundle = [f"bundle: coldproof verify {self.options.report_dir}"] if self.qualification is not None else []
        with contextlib.suppress(OSError):  # the report is written, and the terminal may be closed
            self.terminal.print_summary(results, self.options.report_dir, *bundle, own=own_options(self.options))

    def print_lines(self, lines: Sequence[str]) -> None:
        """Print lines, if somebody still reads them."""
        if self.terminal is None or self.terminal.closed:
            return
        with contextlib.suppress(OSError):
            for words in lines:
                self.terminal.line(words)


def as_stored(case: Case) -> Case:
    """Return a case without secrets, and with text that can be written to a file."""
    return msgspec.convert(redacted_data(storable(msgspec.to_builtins(case))), Case)


def write_case_files(case: Case, report: Path, *, statement: str, environment: dict[str, str]) -> None:
    """Write cases/ID.json, ID.py, ID.md and ID.trace.json into the folder of a report. Raises OSError."""
    folder = report / CASES
    said = bug_report(case, statement=statement, environment=environment)
    write_bytes(folder / f"{case.id}.json", encode(case))
    write_text(folder / f"{case.id}.py", reproducer(case))
    write_text(folder / f"{case.id}.md", said)
    write_text(folder / f"{case.id}{TRACE}", trace_json(case))


def unwritable(problem: OSError) -> str:
    """Return the line for a file that cannot be written."""
    where = f" ({problem.filename})" if problem.filename else ""
    return f"cannot write the report: {problem.strerror or problem}{where}; the verdicts so far are above"


def requirement_lines(results: Results) -> list[str]:
    """Return one line for each requirement: id, verdict, and the reason where there is one."""
    said = ((f"{one.id} {one.verdict.value}", one.reason) for one in results.requirements)
    return [f"{words}: {one_line(reason)[:LONGEST_REASON]}" if reason else words for words, reason in said]


def prepare_copy(path: Path) -> None:
    """Create the folder of --json and delete the file of an earlier run: a caller must not read it for this one's.

    Raises UsageError, also for a file that is not the results of a run: it is somebody else's.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size and not is_results(path):
            raise UsageError(f"--json {path}: the file exists and is no results.json; choose another file")
        if path.exists() and (path.parent / SEAL).exists():
            raise UsageError(f"--json {path}: the file is in the bundle of a qualification; choose another file")
        path.unlink(missing_ok=True)
    except OSError as problem:
        raise UsageError(f"--json {path}: cannot be written ({problem.strerror}); choose another file") from problem


def is_results(path: Path) -> bool:
    """Return whether a file holds the results of a run, of any version."""
    try:
        return bool(msgspec.json.decode(path.read_bytes(), type=ResultsHead).coldproof_version)
    except msgspec.MsgspecError:
        return False


class ResultsHead(msgspec.Struct):
    """What every results.json has, and no other file of Coldproof's."""

    schema_version: int
    coldproof_version: str
    headline: str
    exit_code: int
    requirements: list[msgspec.Raw]


def open_folder(folder: Path, *, leads: bool) -> tuple[OwnFolder, Path | None]:
    """Open the report folder. The process that leads the run moves an earlier report aside, and returns its folder.

    Raises UsageError for a folder that is not ours or in use, and OSError.
    """
    kept = None
    try:
        opened = OwnFolder.begin(folder) if leads else OwnFolder.join(folder)
        if leads:
            kept = opened.keep_earlier()
            for name in RUN_FILES:
                claim(folder / name)
            opened.share()
        make_sub_folder(folder / CASES)
    except FolderRefused as problem:
        raise UsageError(f"--report-dir {problem}") from problem
    except FileExistsError as problem:
        raise UsageError(f"--report-dir {folder}: {problem.filename}: {problem.strerror}") from problem
    return opened, kept
