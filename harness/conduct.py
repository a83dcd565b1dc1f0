"""Conducts one run: events from start to finish, trials from beginning to verdict, reports at the end.

The run's state is in its events; this object only holds what is open: the log, the engines, the terminal.
"""

from __future__ import annotations

import datetime
import enum
import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest

from adapters.base import EngineError, EngineStartError
from adapters.process import EngineProcess
from harness.budget import Budget
from harness.bugreport import bug_report
from harness.cases import load_case
from harness.cell import Cell
from harness.cells import CELLS
from harness.checks import counted
from harness.environment import coldproof_version, environment
from harness.events import EventLog
from harness.faults.catalogue import FAULTS
from harness.folder import engine_facts, prepare_folder
from harness.known_issues import Waivers, read_known_issues
from harness.lab import Lab
from harness.options import QUALIFY, SOAK, Options, UsageError
from harness.oracle.base import OracleError
from harness.proposals import write_proposals
from harness.qualify.coverage import FEWEST_EXAMPLES, FEWEST_REQUESTS
from harness.qualify.manifest import seal
from harness.qualify.record import in_words, keep_known_issues, qualification
from harness.reproducer import reproducer
from harness.requirement import Requirement, Trial, Violation
from harness.selftest import self_test
from harness.session import Session, missing
from harness.soak import Watch, in_rounds
from harness.terminal import Terminal
from harness.verdict import verdict_of_case, verdict_without_case
from reports.assemble import EXIT_HARNESS, assemble, read_events
from reports.schema import Case, Results, Verdict, Waiver, encode
from reports.text import storable, visible
from reports.write import write_all


class Role(enum.StrEnum):
    """Which part of a run this process has."""

    ALONE = "alone"
    CONTROLLER = "controller"
    WORKER = "worker"


class Conductor:
    """One run (or one worker's share of it)."""

    def __init__(self, options: Options, root: Path, role: Role) -> None:
        """Open the report folder. Raises OSError when it cannot be written, UsageError for bad waivers."""
        self.options, self.root, self.role = options, root, role
        self.issues = read_known_issues(options.known_issues)
        leads = role is not Role.WORKER
        self.qualification = qualification(options) if leads and options.profile == QUALIFY else None
        self.case = load_case(options.replay) if options.replay is not None else None
        prepare_folder(options.report_dir, clear=leads)
        self.log = EventLog(options.report_dir / "events.ndjson")
        self.terminal: Terminal | None = None
        self.announced = 0
        self.expected: list[tuple[str, Requirement]] = []  # what the workers of this run are going to try, by cell
        self.workers = 1
        self.met: set[str] = set()  # cells whose engine has told what it cannot do
        self.session: Session | None = None
        self.watch: Watch | None = None
        self.suites_began: float | None = None
        if leads:
            self.log.emit(
                "run_started",
                version=coldproof_version(),
                started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                command=options.command,
                profile=options.profile,
                seed=options.seed,
                shard=options.shard,
                fault=fault_facts(options.fault),
                environment=self.environment,
                allowed=[
                    *([Verdict.NOT_EXERCISED] if options.allow_not_exercised else []),
                    *([Verdict.INCONCLUSIVE] if options.allow_inconclusive else []),
                ],
            )
        if self.qualification is not None:
            keep_known_issues(options)
            self.log.emit("qualification", qualification=self.qualification)

    @functools.cached_property
    def environment(self) -> dict[str, str]:
        """The machine's facts; they ask git, and hold for the whole run."""
        return {**environment(self.root), **(in_words(self.qualification) if self.qualification is not None else {})}

    def attach_terminal(self, reporter: Any, capture: Any) -> None:
        """Show progress where pytest writes."""
        if reporter is not None:
            self.terminal = Terminal(reporter, capture)
            self.log.subscribe(self.terminal.on_event)

    def announce(self, requirement: Requirement, cell: str, statement: str, test: str) -> None:
        """Say that a requirement is going to be tested: whatever happens, the report will speak of it."""
        self.announced += 1
        self.log.emit(
            "requirement",
            id=requirement.id,
            title=requirement.title,
            statement=statement,
            shows=(*requirement.shows, *requirement.shows_where.values()),
            upstream=requirement.upstream,
            fails_on=counted(requirement),
            cell=cell,
            test=test,
        )

    def begin(self) -> None:
        """The self-test, then model and adapters. Ends the run with one line if either fails."""
        self.log.emit("phase", words="self-test of the detector")
        rows = self_test()
        self.log.emit("selftest", rows=rows)
        if not all(row.caught for row in rows):
            missed = next(row.planted for row in rows if not row.caught)
            self.stop(f"RUN INVALID: the detector's self-test was wrong about the planted bug '{missed}'")
        try:
            self.session = Session(self.options, self.log, self.root, self.budget())
            self.session.prepare()
            if self.options.profile == SOAK:
                self.watch = Watch(self.log, self.started_processes, self.options.seconds)
                self.watch.start()
        except UsageError as problem:
            self.stop(str(problem), usage=True)
        except OSError as problem:
            self.stop(f"cannot write adapter files: {problem}")

    def stop(self, message: str, *, usage: bool = False) -> NoReturn:
        """End the whole run with one clear line; the report says how far it came."""
        self.log.emit("problem", message=message, usage=usage)
        pytest.exit(f"coldproof: {message}", returncode=EXIT_HARNESS)

    def open_lab(self, cell: Cell) -> Lab:
        """Start a cell's engines and calibrate. With only one cell, a failure ends the run."""
        session = self.needed_session()
        self.log.emit("phase", words=f"starting the engine for cell '{cell.name}' ({cell.about})")
        try:
            lab = Lab(session, cell)
        except UsageError as problem:
            self.stop(str(problem), usage=True)
        except (EngineError, OracleError) as problem:
            if len(self.options.cells) == 1:
                self.stop(str(problem))
            raise EngineStartError(str(problem)) from problem
        self.log.emit("engine", engine=engine_facts(lab), cell=cell.name, contents=len(lab.contents))
        self.log.emit(
            "calibration", calibration=lab.calibration, seconds=lab.calibration_seconds, own_rule=lab.own_rule
        )
        if self.suites_began is None:
            self.suites_began = time.monotonic()
        waivers = self.waivers(lab.engine.version)
        if any(waivers.in_force(issue) and cell.covers(issue.requirement) for issue in self.issues):
            lab.standby.order(caching=True)  # a known issue is going to need it, and starting is slow
        return lab

    def close_lab(self, lab: Lab) -> None:
        """Stop a cell's engines before the next cell's start; after Ctrl-C the run was closed, and they with it."""
        session = self.session
        if session is None:
            return
        lab.standby.discard()
        session.close_engine(lab.engine)
        if lab.oracle_engine is not None and session.cell_of_answers(lab.cell) == lab.cell != CELLS["default"]:
            session.close_engine(lab.oracle_engine)

    def needed_session(self) -> Session:
        """The session that `begin` opened."""
        if self.session is None:
            raise RuntimeError("the run has not begun")
        return self.session

    def what_to_run(self, lab: Lab, trial: Trial, test: Callable[..., None]) -> Callable[..., None]:
        """The test function, or a replay in its place, or nothing where the engine lacks what it needs."""
        lab.trial = trial
        self.meet(lab)
        absent = self.absent(lab, trial.requirement)
        trial.share = 0.0 if absent else self.needed_session().budget.begin(trial.requirement.weight)
        trial.replaying = self.case is not None
        self.log.emit(
            "trial",
            requirement=trial.requirement.id,
            title=trial.requirement.title,
            cell=trial.cell,
            of=self.announced,
        )
        if absent:
            return lambda **_: None
        trial.familiar = self.waivers(lab.engine.version).may_waive(trial.requirement.id, trial.cell)
        trial.requirement = trial.requirement.on([c for c, s in lab.engine.capabilities.items() if s.present])
        if self.case is not None:
            return lambda **_: self.replay(lab, trial)
        if self.options.profile == SOAK:
            budget = self.needed_session().budget
            return in_rounds(test, self.options.seed, lambda: budget.is_spent(trial))
        return test

    def started_processes(self) -> list[EngineProcess]:
        """The engines' processes so far."""
        return list(self.session.processes) if self.session is not None else []

    def budget(self) -> Budget:
        """The seconds to draw in. A qualification wants to see each requirement so often."""
        seconds, planned = self.options.seconds, self.planned()
        if self.options.profile == QUALIFY:
            return Budget(seconds, planned, examples=FEWEST_EXAMPLES, requests=FEWEST_REQUESTS)
        if self.options.profile == SOAK:  # whose examples are one round's
            return Budget(seconds, planned)
        return Budget(seconds, planned, enough=self.options.examples)

    def planned(self) -> float:
        """The weight of the trials that this process is going to run."""
        return sum(requirement.weight for _, requirement in self.expected) / self.workers or 1.0

    def meet(self, lab: Lab) -> None:
        """Give the time of what an engine cannot do to what it can, as soon as it has told."""
        if lab.cell.name not in self.met:
            self.met.add(lab.cell.name)
            here = [requirement for cell, requirement in self.expected if cell == lab.cell.name]
            lacking = sum(requirement.weight for requirement in here if self.absent(lab, requirement))
            self.needed_session().budget.forget(lacking / self.workers)

    def absent(self, lab: Lab, requirement: Requirement) -> list[str]:
        """What the engine lacks of a requirement's needs."""
        return missing(lab.engine, requirement.needs, contents=len(lab.contents))

    def replay(self, lab: Lab, trial: Trial) -> None:
        """Run the saved case as often as the profile says; the first failure is enough."""
        if self.case is None:
            return
        case, workload = self.case
        mine = {name: files.digest for name, files in lab.contents.items()}
        if not case.contents.items() <= mine.items():
            raise UsageError("the case was made with other adapters: give the same ones with --adapter, in their order")
        on_cold = lab.on_cold(trial)
        for _ in range(self.needed_session().profile.replays):
            (lab.check_without_cache if on_cold else lab.check)(workload)
            trial.passed.clear()

    def conclude(self, lab: Lab, trial: Trial, problem: BaseException | None) -> None:
        """Confirm, waive, and give the verdict; raise pytest's outcome for it."""
        absent = self.absent(lab, trial.requirement)
        case = None
        trial.drawn = (trial.shrinking_since or time.monotonic()) - trial.started
        self.needed_session().budget.settle(trial.drawn)
        if absent:
            verdict, reason = Verdict.UNSUPPORTED, "; ".join(absent)
        elif trial.best is not None:
            where = "the attached engine" if self.options.attached else "a fresh engine"
            self.log.emit("phase", words=f"confirming {trial.requirement.id} on {where}")
            case = self.waived(lab.confirm(trial, lambda found: self.waived(found, lab).known_issue is not None), lab)
            try:
                if self.options.diagnose == "all" or (self.options.diagnose == "new" and case.known_issue is None):
                    self.log.emit("phase", words=f"running the controls of {case.id}")
                    case = lab.with_controls(trial, case)
            finally:  # whoever loses patience with the controls keeps the case
                self.save_case(case, trial.statement)
            verdict, reason = verdict_of_case(case)
        elif self.case is not None and problem is None:
            verdict, reason = Verdict.CONFORMS, f"the case no longer fails in {trial.examples} replays"
        else:
            _, rule = lab.judged_by(ground=lab.on_cold(trial))
            verdict, reason = verdict_without_case(trial, problem, rule)
        lab.trial = None
        self.give(trial, verdict, reason, case)
        show(verdict, trial, reason, problem)

    def give(self, trial: Trial, verdict: Verdict, reason: str, case: Case | None) -> None:
        """Write a trial's verdict."""
        self.log.emit(
            "verdict",
            requirement=trial.requirement.id,
            title=trial.requirement.title,
            cell=trial.cell,
            test=trial.test,
            verdict=verdict,
            reason=reason,
            examples=trial.examples,
            requests=trial.requests,
            evidence=dict(trial.evidence),
            seconds=trial.seconds(),
            drawn=round(trial.drawn, 3),
            share=round(trial.share, 3),
            case=case.id if case else None,
            of=self.announced,
        )

    def fail_trial(self, trial: Trial, failure: Exception) -> None:
        """The verdict of a trial whose engine did not come up."""
        self.give(trial, Verdict.ERROR, str(failure), None)

    def waivers(self, version: str | None) -> Waivers:
        """The known issues for an engine version, today."""
        return Waivers(self.issues, version=version, today=today(), worker=self.options.worker)

    def waived(self, case: Case, lab: Lab) -> Case:
        """The case, marked with the known issue that waives it, if one does."""
        issue = self.waivers(lab.engine.version).waive(case)
        if issue is None:
            return case
        return replace_known_issue(case, f"{issue.reason} ({issue.link})")

    def save_case(self, case: Case, statement: str) -> None:
        """Write cases/ID.json, cases/ID.py and cases/ID.md, and the event that the report draws from."""
        case = msgspec.convert(storable(msgspec.to_builtins(case)), Case)
        folder = self.options.report_dir / "cases"
        (folder / f"{case.id}.json").write_bytes(encode(case))
        (folder / f"{case.id}.py").write_text(reproducer(case))
        report = bug_report(case, statement=statement, environment=self.environment)
        (folder / f"{case.id}.md").write_text(report)
        self.log.emit("case", case=case)

    def finish(self, *, interrupted: bool) -> int:
        """Stop engines, write what is to be told, and return the exit code."""
        self.close(interrupted=interrupted)
        if self.role is Role.WORKER:
            return 0
        results = assemble(read_events(self.log.path))
        version = results.engine.version if results.engine else None
        waivers = self.waivers(version).report(results.cases, results.requirements)
        self.log.emit("waivers", waivers=waivers)
        self.propose(results, waivers)
        self.log.emit("run_finished", complete=not interrupted and not results.problem)
        results = assemble(read_events(self.log.path))
        try:
            write_all(results, self.options.report_dir)
            if self.qualification is not None:
                seal(self.options.report_dir)
        except OSError as problem:
            self.log.emit("problem", message=f"the report could not be written: {problem}", usage=False)
            return EXIT_HARNESS
        self.tell_end(results)
        return results.exit_code

    def propose(self, results: Results, waivers: list[Waiver]) -> None:
        """Write known issues for a person to review, if asked to. No verdict hangs on it: what goes wrong is said."""
        path, entries, problem = self.options.proposals, 0, ""
        if path is None:
            return
        try:
            entries = write_proposals(path, results, waivers, folder=self.options.report_dir, today=today())
        except OSError as failure:
            problem = visible(str(failure))
        self.log.emit("proposed", path=visible(str(path)), entries=entries, problem=problem)

    def close(self, *, interrupted: bool) -> None:
        """Stop the engines and note where the time went."""
        if self.watch is not None:
            self.watch.stop()
        if self.session is None:
            return
        if interrupted:
            self.log.emit("problem", message="the run was interrupted", usage=False)
        session, self.session = self.session, None
        if self.options.fault is not None:
            self.log.emit("fault", acted=session.fault_acted())
        session.close()
        if self.suites_began is not None:
            self.log.emit(
                "measured",
                suite_seconds=round(time.monotonic() - self.suites_began, 3),
                busy_seconds=round(sum(e.busy_seconds for e in session.tested), 3),
                engine_starts=session.starts,
            )

    def tell_end(self, results: Results) -> None:
        """Have the terminal close with the headline and the report's path."""
        if self.terminal is not None:
            self.terminal.end(results, self.options.report_dir)
            if self.qualification is not None:
                self.terminal.line(f"bundle: python -m reports verify {self.options.report_dir}")


def today() -> datetime.date:
    """The day by which waivers expire: the same everywhere on earth."""
    return datetime.datetime.now(datetime.UTC).date()


def fault_facts(name: str | None) -> dict[str, str] | None:
    """What the report says of an injected bug."""
    if name is None:
        return None
    fault = FAULTS[name]
    return {"name": name, "summary": fault.summary, "stands_for": fault.stands_for}


def replace_known_issue(case: Case, text: str) -> Case:
    """The case with its waiver's words."""
    return msgspec.structs.replace(case, known_issue=text)


def show(verdict: Verdict, trial: Trial, reason: str, problem: BaseException | None) -> None:
    """Turn a verdict into pytest's outcome."""
    said = f"{trial.requirement.id} {verdict.value}: {reason}"
    match verdict:
        case Verdict.CONFORMS:
            return
        case Verdict.UNSUPPORTED:
            pytest.skip(said)
        case Verdict.KNOWN_ISSUE:
            # No traceback: nobody reads it, and parsing its sources can end a run on CPython 3.11 (cpython#106905).
            raise pytest.xfail.Exception(said, pytrace=False)
        case Verdict.ERROR:
            if problem is not None and not isinstance(problem, Violation):
                raise problem
    pytest.fail(said, pytrace=False)
