"""Whatever a counterexample needs to be believed: judged runs, a smaller workload, and fresh engines to fail on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import chain

import msgspec

from adapters.base import Capability
from adapters.checked import CheckedEngine
from harness.afresh import reduce_afresh
from harness.bench import Bench
from harness.cases import make_case
from harness.cell import Cell
from harness.confirm import Confirmed, confirm
from harness.descent import descend
from harness.diagnosis.controls import in_the_workload
from harness.diagnosis.diagnose import diagnose
from harness.diagnosis.engines import ControlEngines
from harness.diagnosis.variants import in_the_engine
from harness.earlier import confirm_further
from harness.evidence import Evidence
from harness.history import History
from harness.judge import Judgement, judge
from harness.oracle.base import OracleError
from harness.oracle.other import OtherEngine
from harness.reduction import joined, smaller
from harness.reference_cache import by_chance
from harness.requirement import Failing, Ran, Trial
from harness.session import Session
from harness.simplification import simpler
from harness.workload import Reset, RestoreState, SaveState, SetAdapter, Workload
from reports.schema import Case, Diagnosis, FailureClass

FAMILIAR_SECONDS = 15.0  # for making a counterexample smaller that a known issue may waive: enough for its signature
RETRIES_WHILE_SHRINKING = 3  # a history that depends on timing gets this many chances to fail again
FURTHER = 2  # times the patience for minimising, for what does not fail on a fresh engine by itself
LASTING = ("liveness", "conservation")  # findings about what an engine has left behind in itself, or may have

Another = Callable[[], tuple[CheckedEngine | None, str]]  # a fresh engine, or why there is none


class Prover(Bench):
    """A bench on which workloads are judged, and counterexamples reduced and confirmed."""

    def __init__(self, session: Session, cell: Cell) -> None:
        super().__init__(session, cell)
        self.trial: Trial | None = None

    def current(self) -> Trial:
        """The trial that is running."""
        if self.trial is None:
            raise RuntimeError("a workload can only be checked inside a test that is marked with its requirement")
        return self.trial

    def on_cold(self, trial: Trial) -> bool:
        """Whether a trial is about the engine without its cache: switched off, or bypassed by salts used once."""
        return trial.requirement.id.startswith("GROUND")

    def observe(
        self, engine: CheckedEngine, workload: Workload, nonce: str | None = None, *, ground: bool = False
    ) -> Judgement:
        """One run, judged; under a new nonce unless one is given. An engine of the bench that is lost is replaced at
        once, and the one under test also where it may carry on what was found. `ground`: judged by the engine itself.
        """
        engine = self.living(engine)
        history = self.run(engine, workload, nonce)
        # Somebody's server that stood still and goes on, now that its requests are gone, is there to be judged.
        if history.engine_lost is not None and not (self.session.options.attached and engine.alive()):
            self.replaced(engine)
        exclusive = not self.session.options.attached and engine is not self.oracle_engine
        ground = ground or self.on_cold(self.current())
        try:
            judgement = judge(history, *self.judged_by(ground=ground), exclusive=exclusive)
        except OracleError:
            if self.oracle_engine is None or self.oracle_engine.alive() or engine is self.oracle_engine:
                raise
            self.replaced(self.oracle_engine)
            judgement = judge(history, *self.judged_by(ground=ground), exclusive=exclusive)
        wanted = self.current().requirement
        judgement = judgement.limited(overlapped_too=wanted.overlapped_too, hashes_too=wanted.hashes_too)
        if history.engine_lost is None and any(f.checker in LASTING for f in judgement.findings):
            self.renew(engine)
        return judgement

    def renew(self, engine: CheckedEngine) -> None:
        """Replace the engine under test, so that what fails next fails by itself: every time where that takes seconds,
        once a trial over HTTP.
        """
        trial = self.current()
        options = self.session.options
        if engine is self.engine and not options.attached and (options.quick or not trial.renewed):
            trial.renewed += 1
            self.session.log.emit("phase", words="starting the engine anew, for what failed may have left its mark")
            self.replaced(engine, lost=False)

    def reduce(self, trial: Trial, failing: Failing) -> Failing:
        """Leave out what the counterexample does not need, as long as patience lasts."""
        cold = self.on_cold(trial)
        engine = self.oracle_engine if cold and self.oracle_engine is not None else self.engine
        return descend(
            failing,
            lambda workload, about: chain(self.cuts(trial, workload, about), joined(workload, about)),
            lambda workload: self.fails_again(workload, engine),
            until=time.monotonic() + self.patience(trial),
        )

    def patience(self, trial: Trial) -> float:
        """Seconds for minimising. What no known issue waives after all is reduced once more, and then at leisure."""
        whole = self.session.profile.shrink_seconds
        return min(whole, FAMILIAR_SECONDS) if trial.familiar else whole

    def cuts(self, trial: Trial, workload: Workload, about: int | None) -> Iterator[Workload]:
        """What a counterexample may do without and still be about the same."""
        keep: tuple[type, ...] = (SetAdapter,) if self.on_cold(trial) else ()
        if Evidence.RESETS in trial.requirement.shows:
            keep += (Reset,)  # without it another fault may fail in its place
        if {Evidence.RESTORED, Evidence.RESTORED_ELSE} & set(trial.requirement.shows):
            keep += (SaveState, RestoreState)  # likewise
        return smaller(workload, about, keep=keep)

    def fails_again(self, workload: Workload, engine: CheckedEngine) -> Failing | None:
        """Whether a workload fails, given as many chances as its timing asks for."""
        tries = RETRIES_WHILE_SHRINKING if workload.depends_on_timing() else 1
        for attempt in range(1, tries + 1):
            judgement = self.observe(engine, workload)
            if judgement.findings:
                return Failing(workload, judgement, failed=1, tries=attempt)
        return None

    def prove(self, trial: Trial, is_known: Callable[[Case], bool]) -> tuple[Case, Confirmed]:
        """Reduce the smallest counterexample, confirm it on a fresh engine and make its case.

        What is replayed has been reduced before, and nobody reads a known issue again: neither is reduced afresh.
        """
        if trial.best is None or trial.first is None:
            raise RuntimeError("nothing to confirm")
        failing = trial.best if trial.replaying else self.reduce(trial, trial.best)
        cold = self.on_cold(trial)
        with self.standby.one_by_one(caching=not cold) as another:
            engine, problem = another()
            control, mine = self.control(cold=cold)
            confirmed = self.confirmed(failing, engine, control)
            if confirmed.history_dependent:
                confirmed = self.confirm_further(trial, confirmed, another, control)
            elif engine is not None and not trial.replaying:
                known = is_known(self.case(trial, confirmed, cold=cold, problem=problem))
                confirmed = confirmed if known else self.reduce_afresh(trial, confirmed, engine, another, control)
        case = self.case(trial, confirmed, cold=cold, problem=problem)
        if mine and control is not None:
            self.session.close_engine(control)
        if not cold and not trial.replaying:
            self.standby.order(caching=True)  # where one requirement failed another may, and starting is slow
        return case, confirmed

    def confirm_further(
        self, trial: Trial, confirmed: Confirmed, another: Another, control: CheckedEngine | None
    ) -> Confirmed:
        """What becomes of a counterexample that did not fail on a fresh engine."""
        found = [failing for failing in (trial.first, trial.best) if failing is not None]
        return confirm_further(
            confirmed,
            found,
            start=lambda: another()[0],
            confirm=lambda larger, fresh: self.confirmed(larger, fresh, control),
            rerun=self.rerun,
            observe=self.observe,
            control=control,
            seconds=FURTHER * self.session.profile.shrink_seconds,
        )

    def reduce_afresh(
        self, trial: Trial, confirmed: Confirmed, engine: CheckedEngine, another: Another, control: CheckedEngine | None
    ) -> Confirmed:
        """The second reduction. Where a start is slow one fresh engine serves all of it, and another the last word."""
        if not self.session.options.quick:
            self.standby.order(caching=not self.on_cold(trial))
        return reduce_afresh(
            confirmed,
            engine,
            another=(lambda: another()[0]) if self.session.options.quick else None,
            variants=lambda w, about: chain(self.cuts(trial, w, about), joined(w, about), simpler(w)),
            observe=self.observe,
            confirm=lambda smallest: self.confirmed(smallest, another()[0], control),
            until=time.monotonic() + self.session.profile.shrink_seconds,
        )

    def confirmed(self, failing: Failing, fresh: CheckedEngine | None, control: CheckedEngine | None) -> Confirmed:
        """What becomes of a counterexample on the given engines."""
        oracle, rule = self.judged_by(ground=self.on_cold(self.current()))
        across = oracle.name if isinstance(oracle, OtherEngine) else None
        own = self.session.oracle_for("fresh-engine", fresh, self.cell) if fresh else None
        return confirm(
            failing,
            observe=self.observe,
            fresh=fresh,
            fresh_oracle=own if fresh or not across else self.cold,
            control=control,
            attached=self.engine if self.session.options.attached else None,
            replays=self.session.profile.replays,
            rule=rule,
            across=across,
        )

    def diagnose(self, confirmed: Confirmed) -> Diagnosis | None:
        """Run the controls of a case; None where it fails on no engine by itself, so that none would tell anything."""
        if not any(judgement.findings for judgement in confirmed.again):
            return None
        judgement, options = confirmed.judgement, self.session.options
        controls = in_the_workload(
            judgement.history.workload,
            judgement.worst().request,
            salts=self.can(Capability.CACHE_SALT),
            blocks=by_chance(judgement.history.shape) == 0,
        )
        variants = in_the_engine(self.cell, judgement.history.shape, options.engine_args)
        with ControlEngines(self.session, self.cell, self.engine, self.standby) as engines:
            return diagnose(
                confirmed,
                controls=controls,
                variants=() if options.attached else variants,
                engines=engines,
                observe=self.observe,
                seconds=self.session.profile.controls_seconds,
            )

    def rerun(self, engine: CheckedEngine, ran: Ran) -> History:
        """A run of before, once more."""
        return self.run(self.living(engine), ran.workload, ran.nonce)

    def case(self, trial: Trial, confirmed: Confirmed, *, cold: bool, problem: str) -> Case:
        """The case of a confirmed counterexample."""
        reproduction = confirmed.reproduction
        if problem:
            reproduction = msgspec.structs.replace(reproduction, note=f"no fresh engine came up: {problem[:300]}")
        tested = self.oracle_engine if cold and self.oracle_engine is not None else self.engine
        oracle, rule = self.judged_by(ground=cold)
        return make_case(
            requirement=trial.requirement,
            cell=trial.cell,
            judgement=confirmed.judgement,
            failure_class=FailureClass.NOT_THE_CACHE if cold else confirmed.failure_class,
            reproduction=reproduction,
            engine=tested,
            oracle=oracle.name,
            rule=rule,
            recipes={name: files.recipe for name, files in self.contents.items()},
            report_dir=self.session.options.report_dir,
            history_dependent=confirmed.history_dependent,
            log_tail=confirmed.judgement.history.log_tail or tested.log_tail(),
        )
