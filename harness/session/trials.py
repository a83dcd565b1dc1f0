"""Runs trials. A trial is one requirement in one cell, from its test function to its verdict."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any, NoReturn

import msgspec
import pytest

from coldproof.adapters.common.redact import redacted
from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.engine import EngineError
from coldproof.adapters.protocol.request_time import RequestOverdue
from coldproof.harness.case.known_issues import Waivers
from coldproof.harness.event_log import EventLog
from coldproof.harness.execution.calibration.calibrate import TOKENS, lengths
from coldproof.harness.judgement.oracle import OracleError
from coldproof.harness.judgement.requirement import (
    Absent,
    Requirement,
    absent_everywhere,
    capabilities_of,
    missing_everywhere,
)
from coldproof.harness.judgement.trial import PutAside, Search, Trial, Violation
from coldproof.harness.judgement.verdict import (
    verdict_of_case,
    verdict_of_put_aside,
    verdict_without_case,
    verdict_without_counterexample,
)
from coldproof.harness.options import SOAK, Options, UsageError
from coldproof.harness.schema.case import Case
from coldproof.harness.schema.exit_codes import EXIT_HARNESS
from coldproof.harness.schema.verdict import Verdict
from coldproof.harness.session.budget import OUT_OF_TIME, ProofTime, TrialEnded
from coldproof.harness.session.causes.attributor import Attributor
from coldproof.harness.session.known_findings import KnownFindings
from coldproof.harness.session.proofs import PROVED, Proofs
from coldproof.harness.session.rounds import behind_failures, in_rounds, other_seed, while_lacking
from coldproof.harness.session.run_reports import as_stored
from coldproof.harness.session.schedule import Conclusion, Schedule, Stage, Waiting
from coldproof.harness.session.system_under_test import SystemUnderTest
from coldproof.harness.session.unfinished import Place, open_cases
from coldproof.harness.workload.request_kinds import plain_requests
from coldproof.harness.workload.steps import Workload
from coldproof.reports.assemble.evidence_floor import MIN_EXAMPLES, MIN_REQUESTS, MIN_SERVER_EXAMPLES

SAMPLE = 8  # examples of a trial in the server layer, where other layers draw many


class RunPlan(msgspec.Struct):
    """All tests of a run by cell, the number of workers that share them, and the number that this process announced."""

    expected: list[tuple[str, Requirement]] = []
    workers: int = 1
    announced: int = 0
    begun: Counter[str] = msgspec.field(default_factory=Counter)  # trials of each requirement
    examples: Counter[str] = msgspec.field(default_factory=Counter)
    requests: Counter[str] = msgspec.field(default_factory=Counter)

    def least(self, drawn: int, floor: int, requirement: Requirement) -> int:
        """Return how many of the `floor` examples (or requests) of a requirement its next trial should draw."""
        trials = sum(one.id == requirement.id for _, one in self.expected) / self.workers
        return math.ceil(max(0, floor - drawn) / max(1, trials - self.begun[requirement.id]))

    def in_cell(self, name: str) -> list[Requirement]:
        """Return the requirements that are tested in a cell, once for each test."""
        return [requirement for cell, requirement in self.expected if cell == name]

    def weight(self) -> float:
        """Return the weight of the trials that this process will run."""
        return sum(requirement.weight for _, requirement in self.expected) / self.workers or 1.0


class TrialRunner:
    """Begins and concludes trials.

    `case`: replayed instead of drawing examples. `save_case`: writes the files of a case. `waivers`: returns the known
    issues for an engine version. `time`: that for proofs. `attributor`: finds the cause of a case.
    """

    def __init__(
        self,
        options: Options,
        log: EventLog,
        plan: RunPlan,
        *,
        case: tuple[Case, Workload] | None,
        waivers: Callable[[str | None], Waivers],
        save_case: Callable[[Case, str], None],
        time: ProofTime,
        attributor: Attributor | None = None,
    ) -> None:
        self.options, self.log, self.plan, self.case = options, log, plan, case
        self.waivers = waivers
        self.proofs = Proofs(options, log, waivers=waivers, save_case=save_case, time=time, attributor=attributor)
        self.findings = KnownFindings(options, log, waiver_of=self.proofs.mark_known_issue, save_case=save_case)
        self.unfinished = open_cases(options.prove, options.layer) if options.prove is not None else {}
        self.schedule = Schedule(options.seconds, quick=options.quick)
        self.lacking: dict[Capability, str] = {}  # capabilities that no cell of the engine has, with the evidence
        self.opened_cells: set[str] = set()  # cells whose engine has reported its capabilities
        self.ended_cells: dict[str, Case | None] = {}  # cells whose engine ended at once, with the case about it

    def begin(self, sut: SystemUnderTest, trial: Trial, test: Callable[..., None]) -> Callable[..., None]:
        """Begin a trial, and return the function to run: the test, a replay, or nothing if the engine lacks a need."""
        trial.obstacle = sut.engines.ended
        self.replay_findings(sut, trial)
        self.proofs.hurry(sut, trial)
        sut.begin(trial, lambda seen: self.proofs.waive_seen(seen, sut))
        engines, budget = sut.engines, sut.budget
        if not trial.obstacle:
            self.release_unsupported(sut)
        trial.absent = absent = self.absent_needs(sut, trial)
        if not absent:
            self.set_least(trial)
            trial.share = budget.begin(trial.requirement.weight)
            trial.returns = self.may_return(sut, trial)
            trial.is_brief = trial.returns and self.options.attached
        trial.replaying = self.case is not None
        self.log.emit(
            "trial",
            requirement=trial.requirement.id,
            title=trial.requirement.title,
            cell=trial.cell,
            of=self.plan.announced,
        )
        trial.narrow(engines.pool.dropped.forbidding(trial.requirement.needs))
        if absent or trial.narrowed:
            return lambda **_: None
        trial.waivable = self.waivers(engines.engine.version).may_waive(trial.requirement.id, trial.cell)
        trial.waived_at_once = trial.waivable and self.options.waives_at_once(trial.requirement.suits)
        trial.causes = frozenset(self.proofs.causes)
        trial.may_wait = self.case is None and self.schedule.proof_may_wait(trial)
        trial.requirement = trial.requirement.on([c for c, s in engines.engine.capabilities.items() if s.present])
        if self.case is not None:
            return lambda **_: self.replay(sut, trial)
        if self.options.prove is not None:
            return lambda **_: self.prove(sut, trial)
        if trial.obstacle:
            return self.findings.before(self.plain_requests(sut, trial), sut, trial)
        return self.drawing(sut, trial, test)

    def drawing(self, sut: SystemUnderTest, trial: Trial, test: Callable[..., None]) -> Callable[..., None]:
        """Return what draws the examples of a test in a visit of its cell, and goes on behind counterexamples."""
        budget = sut.budget
        if self.options.profile == SOAK:
            drawn = in_rounds(test, self.options.seed, lambda: budget.is_spent(trial))
        else:
            again = while_lacking(test, self.options.seed, lambda: bool(trial.missing()) and not budget.is_spent(trial))
            drawn = after_probes(again, sut, sut.probes(trial.requirement))
        drawn = self.findings.before(drawn, sut, trial)
        return behind_failures(drawn, self.options.seed, lambda failure: self.proofs.go_on_behind(sut, trial, failure))

    def may_return(self, sut: SystemUnderTest, trial: Trial) -> bool:
        """Return whether a trial ends with its floor at first, because its cell is worth a second visit."""
        if not self.schedule.in_rounds or self.case is not None or sut.budget.slow or trial.obstacle:
            return False
        here = sum(requirement.weight for requirement in self.plan.in_cell(trial.cell))
        return self.schedule.is_worth_a_visit(trial.cell, sut.budget.total * here / self.plan.weight())

    def has_more(self, trial: Trial, problem: BaseException | None) -> bool:
        """Return whether a trial that has ended its first visit may come to more by a second one. It has its floor, or
        had its share, and nothing else.
        """
        clean = problem is None and not (trial.has_failed or trial.aside or trial.known or trial.marks or trial.exceeds)
        lacking = bool(trial.missing()) and (trial.out_of_reach or not trial.is_brief)
        return trial.returns and clean and 0 < trial.drawn_examples < trial.enough and not lacking

    def suspend(self, sut: SystemUnderTest, nodeid: str, trial: Trial, test: Callable[..., None]) -> None:
        """Let a trial wait for the proof of its counterexample, or for more examples. `test`: the test function."""
        self.settle(sut, trial)
        case: Case | None = None  # in the event: a run that is killed loses none
        if trial.search.best is not None:
            stage = Stage.REPLAY if trial.search.saved else Stage.PROOF
            try:
                put = self.proofs.unproved(sut, trial)
            except (EngineError, OracleError) as problem:
                put = PutAside(*verdict_without_case(trial, problem))
            case = put.case
            if case is not None and self.proofs.attributor is not None:
                self.proofs.attributor.prepare(case)

            def conclude() -> Conclusion:
                self.proofs.save_unproved(put, trial)
                trial.next_search(put, ())
                return Conclusion(*verdict_of_put_aside(trial))
        else:
            stage, now = Stage.MORE, self.without_counterexample(sut, trial, None)
            sut.budget.put_off(trial)

            def conclude() -> Conclusion:
                return now

        sut.end()
        self.schedule.put(nodeid, trial, test, stage, conclude)
        self.log.emit(
            "waits",
            requirement=trial.requirement.id,
            cell=trial.cell,
            test=trial.test,
            stage=stage.name.lower(),
            case=None if case is None else as_stored(case),
            examples=trial.examples,
            of=self.plan.announced,
            left=round(sut.budget.expected(), 1),
        )

    def resume(self, sut: SystemUnderTest, waiting: Waiting) -> Callable[..., None]:
        """Return the function to run for a trial that has waited: prove its counterexample and draw on behind it, or
        draw more examples.
        """
        trial = waiting.trial
        self.proofs.hurry(sut, trial)
        sut.begin(trial, lambda seen: self.proofs.waive_seen(seen, sut))
        trial.causes = frozenset(self.proofs.causes)
        self.log.emit(
            "trial",
            requirement=trial.requirement.id,
            title=trial.requirement.title,
            cell=trial.cell,
            of=self.plan.announced,
        )
        if waiting.stage is Stage.MORE:
            trial.share += sut.budget.resume_later(trial)
        else:
            sut.budget.resume(trial.share)
        if waiting.stage is Stage.REPLAY:
            trial.search = Search()  # the test begins with the replays, and looks for their causes now

        test = self.drawing(sut, trial, waiting.test)

        def resumed(**arguments: Any) -> None:
            if waiting.stage is not Stage.PROOF or self.proofs.go_on_behind(sut, trial, TrialEnded()):
                with other_seed(f"{self.options.seed}, a second visit"):
                    test(**arguments)

        return resumed

    def conclude_unvisited(self, waiting: Waiting) -> None:
        """Conclude a trial whose cell has no second visit by what is known of it, and raise pytest's outcome."""
        conclusion = self.emit_conclusion(waiting)
        raise_outcome(conclusion.verdict, waiting.trial, conclusion.reason, None, allowed_verdicts(self.options))

    def conclude_waiting(self) -> None:
        """Emit the verdicts of all trials that still wait, because the run ends, and of one that it cut off."""
        cut, self.schedule.taken = self.schedule.taken, None
        if cut is not None:
            self.conclude_cut_off(cut)
        for nodeid in list(self.schedule.waiting):
            waiting = self.schedule.take(nodeid)
            if waiting is not None:
                self.emit_conclusion(waiting)

    def conclude_cut_off(self, waiting: Waiting) -> None:
        """Emit what is known of a trial whose second visit did not come to its verdict: a counterexample is not lost.

        Of another one there is no verdict: its second visit may have been about to find something.
        """
        trial = waiting.trial
        search, case = trial.search, trial.search.case
        replaying = waiting.stage is Stage.REPLAY and not trial.aside and (search.best is not None or not trial.known)
        if case is not None:  # its controls were interrupted
            trial.next_search(PutAside(*verdict_of_case(case), case), ())
        elif replaying or (waiting.stage is Stage.PROOF and search is waiting.search):
            self.emit_conclusion(waiting)
            return
        trial.set_remarks_apart()
        if any(one.verdict not in PROVED or one.verdict is Verdict.VIOLATED for one in trial.aside):
            self.emit_verdict(trial, *verdict_of_put_aside(trial), left=None)

    def emit_conclusion(self, waiting: Waiting, problem: str = "") -> Conclusion:
        """Emit what is known of a trial that has waited, as its verdict, and return it. `problem`: why it ends so."""
        conclusion = waiting.conclude()
        conclusion = conclusion._replace(reason="; ".join(filter(None, (conclusion.reason, problem))))
        self.emit_verdict(waiting.trial, *conclusion, left=None)
        return conclusion

    def settle(self, sut: SystemUnderTest, trial: Trial) -> None:
        """Count what a trial has drawn since it was last counted."""
        trial.drawn = trial.drawing()
        sut.budget.settle(trial.drawn - trial.settled)
        sut.budget.note_evidence(trial)
        name, plan = trial.requirement.id, self.plan
        plan.examples[name] += trial.examples - trial.settled_examples
        plan.requests[name] += trial.requests - trial.settled_requests
        trial.settled, trial.settled_examples, trial.settled_requests = trial.drawn, trial.examples, trial.requests

    def absent_needs(self, sut: SystemUnderTest, trial: Trial) -> list[Absent]:
        """Return what a trial needs and the engine lacks. Of one that ended at its first requests, nothing is known."""
        return [] if trial.obstacle else sut.unmet_needs(trial.requirement)

    def plain_requests(self, sut: SystemUnderTest, trial: Trial) -> Callable[..., None]:
        """Return the test of a trial in a cell whose engine ended at its first requests: plain requests, in one trial
        of the cell, so that their failure becomes a case. Without a cache, the failure is GROUND-1's.
        """
        of_cold_engine = not sut.engines.calibration.probes
        ground = of_cold_engine and any(one.without_cache for one in self.plan.in_cell(trial.cell))
        if trial.cell in self.ended_cells or ground != trial.requirement.without_cache:
            return lambda **_: None
        self.ended_cells[trial.cell] = None
        check = sut.check_without_cache if trial.requirement.without_cache else sut.check

        def sent(**_: Any) -> None:
            for workload in plain_requests(lengths(sut.limits.block), TOKENS):
                check(workload)

        return sent

    def replay_findings(self, sut: SystemUnderTest, trial: Trial) -> None:
        """At the first trial of a cell, replay the cell's findings. Workers that share the tests replay their own.

        This takes no time from the trial.
        """
        if sut.cell.name in self.opened_cells or self.plan.workers > 1:
            return
        here = self.plan.in_cell(sut.cell.name)
        self.findings.open_cell(sut, here)
        trial.started = time.monotonic()

    def set_least(self, trial: Trial) -> None:
        """Set how many examples the trial should draw, so that all trials of its requirement reach the floor."""
        plan, requirement = self.plan, trial.requirement
        sample = self.options.is_sample(requirement.suits)
        examples = MIN_SERVER_EXAMPLES if sample else MIN_EXAMPLES
        trial.least_examples = plan.least(plan.examples[requirement.id], examples, requirement)
        # The share of the server layer has a floor of examples alone, however many requests they have.
        trial.least_requests = (
            math.inf if sample else plan.least(plan.requests[requirement.id], MIN_REQUESTS, requirement)
        )
        if self.options.profile != SOAK:  # there, the profile's examples are the number in one round
            trial.enough = SAMPLE if sample else max(MIN_EXAMPLES, self.options.examples)
        plan.begun[requirement.id] += 1

    def release_unsupported(self, sut: SystemUnderTest) -> None:
        """Once for each cell, release the time of the trials that the engine does not support."""
        if sut.cell.name not in self.opened_cells:
            self.opened_cells.add(sut.cell.name)
            self.lacking |= absent_everywhere(sut.engines.engine.capabilities)
            here = self.plan.in_cell(sut.cell.name)
            lacking = [requirement for requirement in here if sut.unmet_needs(requirement)]
            sut.budget.drop(sum(requirement.weight for requirement in lacking) / self.plan.workers)
            self.plan.begun.update(requirement.id for requirement in lacking)

    def conclude_unopened(self, trial: Trial, reason: str) -> None:
        """Emit the verdict of a trial whose cell was not opened for lack of time, and raise pytest's outcome for it.

        It is NOT EXERCISED, or UNSUPPORTED if another cell has shown that the engine lacks what it needs.
        """
        trial.absent = absent = missing_everywhere(self.lacking, trial.requirement.needs)
        verdict = Verdict.UNSUPPORTED if absent else Verdict.NOT_EXERCISED
        reason = "; ".join(map(str, absent)) or reason
        self.emit_verdict(trial, verdict, reason, None, left=None)
        raise_outcome(verdict, trial, reason, None)

    def replay(self, sut: SystemUnderTest, trial: Trial) -> None:
        """Run the saved case as often as the profile sets, until it fails."""
        if self.case is None:
            return
        case, workload = self.case
        ours = {name: files.digest for name, files in sut.engines.contents.items()}
        if not case.contents.items() <= ours.items():
            raise UsageError("the case uses other adapters; give the same --adapter options in the same order")
        for _ in range(sut.engines.pool.profile.replays):
            (sut.check_without_cache if trial.requirement.without_cache else sut.check)(workload)
            trial.search.passed.clear()

    def prove(self, sut: SystemUnderTest, trial: Trial) -> None:
        """Prove the counterexamples of a test that an earlier run had no time for, as long as there is time.

        One that was confirmed before, and whose cause is looked for, stays as it is unless it is confirmed again.
        """
        for one in self.unfinished.get(Place(trial.requirement.id, trial.cell, trial.test), ()):
            failing, before = sut.fails_again(one.workload, one.case.nonce), trial.aside
            if self.proofs.time.is_over():
                return
            put = one.not_reproduced(sut.engines.pool.profile.replays)
            if failing is not None:
                trial.search.keep(failing)
                self.proofs.put_aside(sut, trial)
            elif put is not None:
                self.proofs.save_unproved(put, trial)
                trial.next_search(put, ())
            else:
                continue
            made = next((other for other in trial.aside if other not in before), None)
            case = made.case if made is not None else None
            counts = made is None or (case is not None and (put is not None or made.verdict in PROVED))
            if not counts:
                trial.aside = before
            became = case.id if case is not None else ""
            self.log.emit("proof", case=one.case.id, became=became, counts=counts)

    def conclude(self, sut: SystemUnderTest, trial: Trial, problem: BaseException | None) -> None:
        """Confirm and waive what was found, emit the verdict, and raise pytest's outcome for it."""
        absent = self.absent_needs(sut, trial)
        trial.out_of_time = "" if sut.budget.time_left() else OUT_OF_TIME
        if trial.search.best is None and problem is None and trial.exceeds and not trial.aside:
            problem = self.check_diverging(sut, trial)
        case = None
        self.settle(sut, trial)
        if trial.search.best is not None and not absent:
            self.proofs.put_aside(sut, trial)
        if not absent:
            self.proofs.look_behind(sut, trial)
        self.proofs.seconds += trial.proving - trial.attributing
        if trial.aside:
            problem = trial.problem  # how the test ended is what was put aside
            trial.set_remarks_apart()
        accepted = map(self.waivers(sut.engines.engine.version).waive, (one for one in trial.known if one.is_remark))
        trial.accepted_remarks = [str(issue) for issue in accepted if issue is not None]
        if absent:
            verdict, reason = Verdict.UNSUPPORTED, "; ".join(map(str, absent))
        elif trial.aside:
            verdict, reason, case = verdict_of_put_aside(trial)
        elif self.case is not None and problem is None:
            verdict, reason = Verdict.CONFORMS, f"the case no longer fails in {trial.examples} replays"
        else:
            verdict, reason, case = self.without_counterexample(sut, trial, problem)
        if trial.obstacle and case is not None and verdict in (Verdict.VIOLATED, Verdict.KNOWN_ISSUE):
            self.ended_cells[trial.cell] = case
        sut.end()
        self.emit_verdict(trial, verdict, reason, case, left=sut.budget.expected())
        if isinstance(problem, RequestOverdue):
            self.end_run(problem)
        raise_outcome(verdict, trial, reason, problem, allowed_verdicts(self.options))

    def without_counterexample(self, sut: SystemUnderTest, trial: Trial, problem: BaseException | None) -> Conclusion:
        """Return what a trial shows that has no counterexample besides its replayed findings."""
        _, rule = sut.engines.oracle_and_rule(ground=trial.requirement.without_cache)
        with_rare = self.waivers(sut.engines.engine.version).with_rare
        ended = self.ended_cells.get(trial.cell)
        verdict, reason = verdict_without_counterexample(trial, problem, rule, ended=ended, with_rare=with_rare)
        return Conclusion(verdict, reason, next(iter(trial.known), None))

    def end_run(self, problem: RequestOverdue) -> NoReturn:
        """End the run after a request was cut off: what the server still does with it would change later answers."""
        self.log.emit("problem", message=str(problem), usage=False)
        pytest.exit(f"coldproof: {redacted(str(problem))}", returncode=EXIT_HARNESS)

    def check_diverging(self, sut: SystemUnderTest, trial: Trial) -> Exception | None:
        """Look for a counterexample among the examples that diverged too often. Return what kept it from running."""
        try:
            sut.check_diverging(trial)
        except TrialEnded:
            return trial.problem
        return None

    def emit_verdict(
        self, trial: Trial, verdict: Verdict, reason: str, case: Case | None, *, left: float | None
    ) -> None:
        """Emit the verdict of a trial. `left`: seconds that the trials to come are expected to draw examples."""
        if self.schedule.taken is not None and self.schedule.taken.trial is trial:
            self.schedule.taken = None
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
            cold=trial.cold,
            seconds=trial.seconds(),
            drawn=round(trial.drawn, 3),
            share=round(trial.share, 3),
            case=case.id if case else None,
            further=[
                {"case": one.case.id, "verdict": one.verdict}
                for one in trial.aside
                if one.case is not None and one.case is not case
            ],
            absent=capabilities_of(trial.absent),
            missing=trial.missing() if verdict is Verdict.NOT_EXERCISED else [],
            of=self.plan.announced,
            exhausted=trial.exhausted,
            narrowed=[one.kind for one in trial.narrowed],
            known=[one.id for one in trial.known],
            remarks=remarks_of(trial.known),
            looked_behind=trial.looked_behind,
            not_behind=trial.unknown_behind,
            ended=ended.id if (ended := self.ended_cells.get(trial.cell)) is not None else None,
            left=None if left is None else round(left, 1),
        )


def remarks_of(cases: Collection[Case]) -> list[str]:
    """Return the findings that are remarks and that these cases show."""
    shown = (one.attribution.finding for one in cases if one.is_remark and one.attribution is not None)
    return list(dict.fromkeys(shown))


def after_probes(test: Callable[..., None], sut: SystemUnderTest, probes: list[Workload]) -> Callable[..., None]:
    """Return a test that first checks these workloads: the calibration saw the engine die of such requests."""

    def probed(**arguments: Any) -> None:
        for probe in probes:
            sut.check(probe)
        test(**arguments)

    return probed if probes else test


def allowed_verdicts(options: Options) -> list[Verdict]:
    """Return the verdicts that the user said do not fail the run."""
    relaxed = {Verdict.NOT_EXERCISED: options.allow_not_exercised, Verdict.INCONCLUSIVE: options.allow_inconclusive}
    return [verdict for verdict, allow in relaxed.items() if allow]


def raise_outcome(
    verdict: Verdict, trial: Trial, reason: str, problem: BaseException | None, allowed: Collection[Verdict] = ()
) -> None:
    """Return for CONFORMS; raise pytest's outcome for any other verdict.

    `problem`: the exception that ended the test, if any. `allowed`: verdicts that do not fail the run, so that they do
    not end it with pytest's -x either.
    """
    message = f"{trial.requirement.id} {verdict.value}: {reason}"
    if verdict in allowed:
        pytest.skip(message)
    match verdict:
        case Verdict.CONFORMS:
            return
        case Verdict.UNSUPPORTED:
            pytest.skip(message)
        case Verdict.KNOWN_ISSUE:
            # No traceback: it is not useful, and parsing its sources can end a run on CPython 3.11 (cpython#106905).
            raise pytest.xfail.Exception(message, pytrace=False)
        case Verdict.ERROR:
            # A server's error has no traceback: it is one line, whatever the server did.
            if problem is not None and not isinstance(problem, Violation | EngineError | OracleError | RequestOverdue):
                raise problem
    pytest.fail(message, pytrace=False)
