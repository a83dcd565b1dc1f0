"""Replays the known findings of an engine before anything is drawn: a regression of an old bug is seen at once.

A cell's findings run right after its engine has started, each once, under the tokens with which it was found. They
take none of the time for drawing examples. Each counts when its requirement's trial begins, as an example like any
other. A failure that a known issue waives makes the trial a known issue and lets it go on, and so does a remark without
that. Any other failure is a counterexample.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import msgspec

from coldproof.harness.case.finding_records import StoredFinding, is_regression, read_findings, read_records
from coldproof.harness.event_log import EventLog
from coldproof.harness.execution.observer import Observer
from coldproof.harness.judgement.judge import Judgement
from coldproof.harness.judgement.reach.collect import reached
from coldproof.harness.judgement.requirement import Requirement
from coldproof.harness.judgement.trial import Failing, Trial
from coldproof.harness.options import FIRST, ONLY, Options
from coldproof.harness.schema.case import Case
from coldproof.harness.schema.findings import FindingReplay, ReplayResult
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.session.budget import TrialEnded
from coldproof.harness.session.failure_marks import mark_of_case
from coldproof.harness.session.system_under_test import SystemUnderTest, raise_violation
from coldproof.harness.workload.request_kinds import is_plain_request
from coldproof.harness.workload.steps import lives_of

TRIES = 3  # of a workload that depends on timing
SHARE = 0.1  # of the run's budget that the replays of a process may take; those that are left are not run
LEAST_SECONDS = 20.0


class Replayed(msgspec.Struct, frozen=True):
    """The replay of a finding: its judgements, the last of which failed if any did, or why it was not run."""

    finding: StoredFinding
    judgements: tuple[Judgement, ...] = ()
    not_run: str = ""
    seconds: float = 0.0

    @property
    def failing(self) -> Failing | None:
        """Return the failure; None if the case passed or was not run."""
        if not self.judgements or not self.judgements[-1].findings:
            return None
        workload = self.judgements[-1].history.workload
        return Failing(workload, self.judgements[-1], failed=1, tries=len(self.judgements))


class WaiverOf(Protocol):
    """Returns the case with its cause, and with its waiver, if a known issue in force waives it."""

    def __call__(self, case: Case, sut: SystemUnderTest, *, fails_now: bool) -> Case:
        """Return the case. `fails_now`: it has just failed."""


class KnownFindings:
    """The findings of the engine that a process of a run tests.

    `waiver_of`: returns the case with its cause and its waiver. `save_case`: writes its files.
    """

    def __init__(
        self,
        options: Options,
        log: EventLog,
        *,
        waiver_of: WaiverOf,
        save_case: Callable[[Case, str], None],
    ) -> None:
        """Read the findings that this process can replay. Raises UsageError for a faulty one."""
        self.options, self.log, self.waiver_of, self.save_case = options, log, waiver_of, save_case
        self.waiting: dict[tuple[str, str], list[StoredFinding]] = defaultdict(list)  # by cell and requirement
        self.replayed: dict[tuple[str, str], list[Replayed]] = defaultdict(list)
        self.of_trials: dict[Trial, list[Replayed]] = {}  # of those that wait
        self.seconds = 0.0
        for finding in applicable(options):
            self.waiting[finding.record.found.cell, finding.record.requirement].append(finding)

    def open_cell(self, sut: SystemUnderTest, requirements: list[Requirement]) -> None:
        """Replay the findings about these requirements of the cell that was opened."""
        for requirement in one_of_each(requirements, lambda one: bool(sut.unmet_needs(one))):
            self.run_due(sut, requirement)

    def run_due(self, sut: SystemUnderTest, requirement: Requirement) -> None:
        """Replay the findings about a requirement in a cell that were not replayed yet."""
        place = sut.cell.name, requirement.id
        for finding in self.waiting.pop(place, ()):
            began = time.monotonic()
            self.log.emit("phase", words=f"replaying the finding {finding.id}", detail=True)
            done = self.replay(sut, finding, requirement)
            seconds = time.monotonic() - began
            self.seconds += seconds
            done = msgspec.structs.replace(done, seconds=round(seconds, 3))
            if done.not_run:
                self.report(sut, done, ReplayResult.NOT_RUN, done.not_run)
            else:
                self.replayed[place].append(done)

    def replay(self, sut: SystemUnderTest, finding: StoredFinding, requirement: Requirement) -> Replayed:
        """Replay one finding on the engine of its cell."""
        assert finding.case is not None
        assert finding.workload is not None
        if why := self.obstacle(sut, finding, requirement):
            return Replayed(finding, not_run=why)
        engines, workload = sut.engines, finding.workload
        observe, judged = Observer(engines, requirement, doubts=lambda: False), []
        tested = engines.oracle_engine if requirement.without_cache else None
        for attempt in range(TRIES if workload.depends_on_timing() else 1):
            engine = engines.live_engine(tested or engines.engine)
            try:
                judged.append(observe(engine, workload, finding.case.nonce if attempt == 0 else None))
            except Exception as problem:  # noqa: BLE001 - the drawn examples of the trial will show it as its ERROR
                return Replayed(finding, not_run=f"{type(problem).__name__}: {problem}")
            if judged[-1].findings:
                if requirement.without_cache:
                    sut.exclude_mixtures(sut.drawn_mixtures(judged[-1]))
                break
        return Replayed(finding, judgements=tuple(judged))

    def obstacle(self, sut: SystemUnderTest, finding: StoredFinding, requirement: Requirement) -> str:
        """Return why a finding cannot be replayed here; empty if it can."""
        engines, case = sut.engines, finding.case
        least = 0.0 if self.options.keeps_budget else LEAST_SECONDS
        if self.options.findings == FIRST and self.seconds > max(least, SHARE * sut.budget.total):
            return "the time for known findings is over"
        if not sut.budget.time_left():
            return "the time of the run is over"
        if self.options.findings == FIRST and not self.options.quick and needs_engine_starts(finding):
            return "it would take the start of another server; `coldproof findings --replay` replays it"
        ours = {name: files.digest for name, files in engines.contents.items()}
        if case is None or not case.contents.items() <= ours.items():
            return "the case uses other adapters than this run"
        if engines.ended:
            plain = finding.workload is not None and is_plain_request(finding.workload)
            return "" if plain else "the engine ended at its first requests"
        if absent := sut.unmet_needs(requirement):
            return "; ".join(map(str, absent))
        if finding.workload is not None and engines.pool.dropped.without(finding.workload, requirement.needs)[1]:
            return "the run does not send a kind of request that it needs"
        return ""

    def before(self, test: Callable[..., None], sut: SystemUnderTest, trial: Trial) -> Callable[..., None]:
        """Return a test that first counts the replays of its requirement, and then runs `test` unless they are all."""
        self.run_due(sut, trial.requirement)
        done = self.of_trials.pop(trial, None) or self.replayed.pop((trial.cell, trial.requirement.id), [])
        if not done and self.options.findings != ONLY:
            return test

        def counted(**arguments: Any) -> None:
            while done:  # it is called again behind a failure
                self.let_wait(trial, done)
                self.count(sut, trial, done.pop(0))
            if self.options.findings == ONLY:
                raise TrialEnded
            test(**arguments)

        return counted

    def let_wait(self, trial: Trial, done: list[Replayed]) -> None:
        """End the first visit of a trial whose finding fails again: its cause is looked for when others have drawn.

        `done`: its replays that were not counted yet.
        """
        one = done[0]
        if one.failing is not None and trial.may_wait:
            trial.take(one.failing)
            trial.waits, self.of_trials[trial] = True, done
            raise TrialEnded

    def count(self, sut: SystemUnderTest, trial: Trial, one: Replayed) -> None:
        """Add the examples of a replay to a trial. Raises Violation for one that counts."""
        for judgement in one.judgements:
            trial.add(judgement)
            sut.emit_example(judgement, trial, reached(judgement.history), finding=one.finding.id)
        failing, record = one.failing, one.finding.record
        if failing is None:
            self.report(sut, one, ReplayResult.PASSES, "")
            return
        regression = is_regression(record, sut.engines.engine.version)
        wanted = {record.failure_class} & {FailureClass.NOT_THE_CACHE}
        seen = sut.current().proof.as_seen(
            trial.requirement, failing, note=f"a replay of the finding {one.finding.id}", controlled=bool(wanted)
        )
        case = seen if regression else self.waiver_of(seen, sut, fails_now=True)
        same = case.signature == record.signature
        result = ReplayResult.FAILS if same else ReplayResult.OTHERWISE
        self.report(sut, one, result, case.sentence, regression=regression, case=case.id)
        if case.known_issue is None and not case.is_remark:
            said = f"regression of {one.finding.id}, fixed in {record.fixed_in}" if regression else ""
            trial.take(failing, regression=said)
            raise_violation(case.sentence)
        self.save_case(case, trial.statement)
        trial.known.append(case)
        trial.causes |= {case.signature}
        trial.marks[mark_of_case(case)] += 1

    def report(
        self,
        sut: SystemUnderTest,
        one: Replayed,
        result: ReplayResult,
        words: str,
        *,
        regression: bool = False,
        case: str = "",
    ) -> None:
        """Emit the result of a replay. `case`: the id of the case that shows its failure."""
        replay = FindingReplay(
            finding=one.finding.id,
            requirement=one.finding.record.requirement,
            cell=sut.cell.name,
            layer=self.options.layer if self.options.joined else "",
            result=result,
            words=words,
            seconds=one.seconds,
            regression=regression,
            repaired=bool(self.options.repairs),
            case=case,
        )
        self.log.emit("finding", replay=replay)


def one_of_each(requirements: Iterable[Requirement], lacks: Callable[[Requirement], bool]) -> list[Requirement]:
    """Return each requirement once: of its tests, the first whose needs the engine meets, or else the last."""
    found: dict[str, Requirement] = {}
    for one in requirements:
        if one.id not in found or lacks(found[one.id]):
            found[one.id] = one
    return list(found.values())


def needs_engine_starts(finding: StoredFinding) -> bool:
    """Return whether a replay ends its engine, or needs several of them."""
    restarts = finding.workload is not None and bool(lives_of(finding.workload)[1:])
    return restarts or (finding.case is not None and any(row.error for row in finding.case.requests))


def applicable(options: Options) -> list[StoredFinding]:
    """Return the findings that a process with these options can replay: those of its engine, worker and model.

    None where the run tests something else than the engine as it is: with an injected fault, with noise, with the
    user's adapters or weights, on a server that is not managed by Coldproof, or where it replays a case of the user's.
    """
    own_files = options.adapters or options.weights
    other = options.fault is not None or options.noise is not None or options.replay is not None
    if options.findings not in (FIRST, ONLY) or own_files or other or options.attached:
        return []
    wanted = (options.engine, options.worker, options.model)
    chosen = [
        record
        for record in read_records().values()
        if (record.found.adapter, record.found.worker, record.found.model) == wanted and record.no_case is None
    ]
    return read_findings(chosen)
