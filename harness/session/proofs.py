"""Proves the counterexamples of trials one after the other, and puts each aside, so that its trial can draw on."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Callable, Collection

import msgspec
import pytest

from coldproof.adapters.protocol.request_time import RequestOverdue
from coldproof.harness.case.known_issues import Issue, Seen, Waivers
from coldproof.harness.event_log import CONFIRMING, EventLog
from coldproof.harness.judgement.trial import PutAside, Trial
from coldproof.harness.judgement.verdict import verdict_of_case, verdict_without_case
from coldproof.harness.option_table import option_words
from coldproof.harness.options import Options
from coldproof.harness.schema.attribution import NO_TIME, Attribution, Basis
from coldproof.harness.schema.case import Case, Unfinished
from coldproof.harness.schema.verdict import Verdict
from coldproof.harness.session.budget import ProofTime, TrialEnded
from coldproof.harness.session.causes.attributor import Attributor, Behind, OutOfTime
from coldproof.harness.session.failure_marks import mark_of_case
from coldproof.harness.session.system_under_test import SystemUnderTest

PROVED = (Verdict.VIOLATED, Verdict.KNOWN_ISSUE, Verdict.CONFORMS)  # the last of a remark
PROOF_SHARE = 0.5  # of the run's budget: with more spent on proofs, a counterexample is proved in a hurry
# Of a trial, for what it finds behind its first counterexample, if its share for drawing is less.
FURTHER_SECONDS = 5.0


class Proofs:
    """Proves counterexamples. `waivers`: returns the known issues for an engine version. `save_case`: writes the files
    of a case. `time`: that for proofs. `attributor`: finds the cause of a case; None: nobody asks for it.
    """

    def __init__(
        self,
        options: Options,
        log: EventLog,
        *,
        waivers: Callable[[str | None], Waivers],
        save_case: Callable[[Case, str], None],
        time: ProofTime,
        attributor: Attributor | None = None,
    ) -> None:
        self.options, self.log, self.waivers, self.save_case = options, log, waivers, save_case
        self.attributor, self.time = attributor, time
        self.causes: set[str] = set()  # signatures of the counterexamples confirmed so far
        self.seconds = 0.0  # spent on minimising, confirming and diagnosing counterexamples of trials that ended

    def hurry(self, sut: SystemUnderTest, trial: Trial) -> None:
        """Let the counterexamples of a trial take less time if the run has spent much of its time on proofs."""
        long = self.seconds + trial.proving - trial.attributing > PROOF_SHARE * sut.budget.total
        trial.hurried = long or self.time.is_short()

    def go_on_behind(self, sut: SystemUnderTest, trial: Trial, failure: BaseException) -> bool:
        """Put the counterexample of a trial aside. Return whether the trial goes on; False where there is none.

        Raises TrialEnded where its proof waits, or the trial ends behind it: what was put aside is no problem of the
        trial, also if it showed a known finding again and there is no case of it.
        """
        found = trial.search.best is not None
        if found and trial.waits:
            raise TrialEnded
        goes_on = self.put_aside(sut, trial, failure)
        if found and not goes_on:
            raise TrialEnded
        return goes_on

    def put_aside(self, sut: SystemUnderTest, trial: Trial, failure: BaseException | None = None) -> bool:
        """Prove the counterexample of a trial and put it aside. Return whether the trial goes on behind it.

        `failure`: how the test ended. What was put aside before, by what is left of it when it is minimised, is not
        confirmed again.
        """
        if trial.search.best is None:
            if isinstance(failure, Exception):
                trial.problem = trial.problem or failure
            return False
        marks, put, over = sut.current().marks, None, self.time.is_over()
        marks.masked = 0
        try:
            if over:
                put = self.unproved(sut, trial)
                self.save_unproved(put, trial)
            else:
                with self.time.taken():
                    if trial.search.saved or not trial.marks or not self.is_same_again(sut, trial):
                        put = self.proved(sut, trial)
        except pytest.exit.Exception:
            raise
        except RequestOverdue as problem:
            trial.problem, put = problem, self.unproved(sut, trial)
            self.save_unproved(put, trial)
        except Exception as problem:  # noqa: BLE001 - without a confirmation there is no violation
            trial.problem = problem
            put = PutAside(*verdict_without_case(trial, problem))
        found = marks.of_search()
        if put is not None and put.case is not None:
            found.add(mark_of_case(put.case))
        # What failed in no replay is no known failure of this trial: it may be proved when it is seen again.
        trial.next_search(put, found if put is None or put.verdict in PROVED else ())
        self.hurry(sut, trial)
        trial.causes = frozenset(self.causes)
        return not over and self.goes_on(sut, trial)

    def unproved(self, sut: SystemUnderTest, trial: Trial) -> PutAside:
        """Return what is put aside of a counterexample that is not proved: its case as it was seen, for later."""
        assert trial.search.best is not None
        seen = sut.current().proof.as_seen(
            trial.requirement, trial.search.best, note="not replayed for lack of time", controlled=False
        )
        case = msgspec.structs.replace(seen, test=trial.test, unfinished=Unfinished.PROOF)
        return PutAside(*verdict_of_case(case), case)

    def save_unproved(self, put: PutAside, trial: Trial) -> None:
        """Save the case of a counterexample that was not proved."""
        if put.case is not None:
            self.save_case(put.case, trial.statement)

    def look_behind(self, sut: SystemUnderTest, trial: Trial) -> None:
        """Replay examples that failed like a known cause with its repair. Put aside one that fails with it as well.

        Equal signatures are no proof of one cause: another fault may fail in the same way.
        """
        if self.attributor is None or trial.problem is not None:
            return
        with self.time.taken(proofs=0):
            self.look_behind_known(sut, trial, self.attributor)

    def look_behind_known(self, sut: SystemUnderTest, trial: Trial, attributor: Attributor) -> None:
        """Do so for each known cause, as long as there is time."""
        waivers = self.waivers(sut.engines.engine.version)
        accepted = {one.finding for one in waivers.issues if one.finding is not None and waivers.in_force(one)}
        known = [(case, {mark_of_case(case)}) for case in trial.known]
        known += [(one.case, {mark_of_case(one.case), *one.marks}) for one in trial.aside if one.case is not None]
        for case, marks in [(case, marks) for case, marks in known if decided(case) and case.attribution is not None]:
            ordered = sorted(marks, key=msgspec.structs.astuple)
            alike = [failing for mark in ordered for failing in trial.alike.pop(mark, [])]
            try:
                found = attributor.behind(case, alike, trial.requirement, accepted) if alike else Behind()
            except OutOfTime:
                trial.not_behind = NO_TIME
                return
            trial.looked_behind += found.passed
            trial.not_behind = trial.not_behind or (found.words if found.failing is None else "")
            if found.failing is None:
                continue
            assert case.attribution is not None
            cause, how = case.attribution, found.words.rstrip(".")
            words = f"it fails like {cause.finding}, and with {cause.repairs_of('that finding')} as well: {how}"
            new = Attribution(basis=Basis.NEW, words=words, tried=cause.findings)
            trial.take_beside(found.failing, new, found.failed, found.tries)
            self.put_aside(sut, trial)

    def is_same_again(self, sut: SystemUnderTest, trial: Trial) -> bool:
        """Minimise the counterexample of a later search. Return whether it is one that the trial has put aside."""
        found, current = trial.counterexamples(), sut.current()
        if found is not None and not found.replayed:
            trial.search.best = current.proof.minimise(found)
            trial.search.minimised = True
        return trial.search.best is not None and current.marks.is_put_aside(current.marks.of(trial.search.best))

    def proved(self, sut: SystemUnderTest, trial: Trial) -> PutAside | None:
        """Confirm the counterexample of a trial. Return None if it turns out to be one that was put aside before."""
        regression = trial.search.regression
        case = self.confirmed_case(sut, trial)
        if case is None:
            return None
        verdict, reason = verdict_of_case(case)
        return PutAside(verdict, f"{regression}: {reason}" if regression else reason, case)

    def goes_on(self, sut: SystemUnderTest, trial: Trial) -> bool:
        """Return whether a trial draws on behind what it has put aside."""
        engines, budget = sut.engines, sut.budget
        enough = len(trial.aside) >= engines.pool.profile.counterexamples
        long = trial.proving_further - trial.attributing_further > max(FURTHER_SECONDS, trial.share)
        impossible = trial.problem is not None or bool(engines.pool.dropped.forbidding(trial.requirement.needs))
        return not (enough or long or impossible or budget.is_spent(trial))

    def confirmed_case(self, sut: SystemUnderTest, trial: Trial) -> Case | None:
        """Confirm the counterexample of a trial, run the controls of its case, and save the case.

        Return None if the case shows what the trial has put aside before.
        """
        where = "the attached engine" if self.options.attached else "a fresh engine"
        left = round(sut.budget.expected(), 1)
        self.log.emit("phase", stage=CONFIRMING, words=f"confirming {trial.requirement.id} on {where}", left=left)
        case, confirmed = sut.confirm(trial, lambda found: decided(self.mark_known_issue(found, sut)))
        trial.search.proved = confirmed.judgement
        again = case.reproduction.failed_again  # the verdict of another one does not depend on its cause
        if trial.search.cause is not None:
            others = {one.case.id for one in trial.aside if one.case is not None}
            case = beside(case, trial.search.cause, others, trial.search.with_repair)
        elif not trial.search.regression:
            case = self.mark_known_issue(case, sut, attribute=again)
        if case.attribution is not None and case.attribution.lacked_time:
            case = msgspec.structs.replace(case, unfinished=Unfinished.CAUSE)
        case = msgspec.structs.replace(case, test=trial.test)
        if not trial.search.saved and sut.current().marks.shows_what_was_put_aside(case):
            return None
        try:
            new = not has_known_cause(case) and case.signature not in self.causes and not trial.hurried
            if self.options.diagnose == "all" or (self.options.diagnose == "new" and new):
                self.log.emit("phase", words=f"running the controls of {case.id}")
                with contextlib.suppress(RequestOverdue):  # the case is confirmed, with or without its controls
                    case = sut.with_controls(case, confirmed)
        finally:  # save the case even if its controls were interrupted
            self.save_case(case, trial.statement)
            trial.search.case = case
        if verdict_of_case(case)[0] in PROVED:
            self.causes.add(case.signature)
            sut.drop_crashing_kind(case, confirmed)
        return case

    def mark_known_issue(
        self, case: Case, sut: SystemUnderTest, *, attribute: bool = True, fails_now: bool = False
    ) -> Case:
        """Return the case with its attribution, marked with the known issue that waives it, if one does.

        A remark needs no waiver. `attribute`: find its cause. `fails_now`: it has just failed on the engine of the run.
        """
        if self.attributor is not None and attribute:
            trial, began = sut.current().trial, time.monotonic()
            with self.time.taken():
                found = self.attributor.attribution(case, trial.requirement, sut.engines, fails_now=fails_now)
            trial.spend_on_causes(time.monotonic() - began)
            case = msgspec.structs.replace(case, attribution=found)
        if case.is_remark:
            return case
        issue = self.waivers(sut.engines.engine.version).waive(case)
        if issue is None:
            return case
        return msgspec.structs.replace(case, known_issue=str(issue))

    def waive_seen(self, seen: Seen, sut: SystemUnderTest) -> Issue | None:
        """Return the known issue that waives a failure which is no case yet, as it does cases that failed so."""
        if self.attributor is not None:
            found = self.attributor.known((seen.requirement, seen.cell, seen.signature))
            seen = msgspec.structs.replace(seen, attribution=found)
            if found is not None and found.remark:
                return None
        return self.waivers(sut.engines.engine.version).waive(seen)


def decided(case: Case) -> bool:
    """Return whether a case counts no more: a known issue waives it, or it shows a remark."""
    return case.known_issue is not None or case.is_remark


def has_known_cause(case: Case) -> bool:
    """Return whether its cause is known: it is waived, or replays showed it. Controls would tell nothing new."""
    return decided(case) or (case.attribution is not None and case.attribution.is_by_replay)


def beside(case: Case, cause: Attribution, others: Collection[str], with_repair: tuple[int, int]) -> Case:
    """Return the case of a failure beside a known cause: its replay has the repair of that. `others`: ids of cases.

    `with_repair`: the replays that failed on engines with that repair, and all of them. As it is shipped, the known
    cause may hide the failure, so that these prove it where no other replay failed.
    """
    own = f"{case.id}-beside" if case.id in others else case.id
    replay = shlex.join([*shlex.split(case.replay.replace(case.id, own)), *option_words(repairs=tuple(cause.tried))])
    tried, (failed, tries) = case.reproduction, with_repair
    if not tried.failed_again and failed:
        hidden = f"as it is shipped, the engine fails otherwise, or not, in {tried.fresh_tries or 0} replays"
        note = f"replayed with the repair of {' and '.join(cause.tried)}: {hidden}"
        tried = msgspec.structs.replace(tried, fresh_failed=failed, fresh_tries=tries, note=note)
    return msgspec.structs.replace(case, id=own, attribution=cause, replay=replay, reproduction=tried)
