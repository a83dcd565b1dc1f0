"""Turns a counterexample into a case: minimises it, confirms it on fresh engines, and runs its controls."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import chain

import msgspec

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.registry import variants_of
from coldproof.harness.case.case import make_case
from coldproof.harness.execution.engines.cell_engines import CellEngines
from coldproof.harness.execution.oracles.cross_engine import OtherEngine
from coldproof.harness.history.records import History
from coldproof.harness.judgement.collect import with_trait
from coldproof.harness.judgement.counters import Trait
from coldproof.harness.judgement.reference_cache import by_chance
from coldproof.harness.judgement.requirement import Requirement
from coldproof.harness.judgement.trial import Counterexamples, Failing, Ran
from coldproof.harness.proof.confirm.confirm import Confirmed, Observe, confirm
from coldproof.harness.proof.confirm.mixtures import suspected_mixtures
from coldproof.harness.proof.confirm.with_prior_workloads import confirm_further
from coldproof.harness.proof.diagnose.control_engines import ControlEngines
from coldproof.harness.proof.diagnose.controls import controls_of
from coldproof.harness.proof.diagnose.crashing_kind import crashing_kind
from coldproof.harness.proof.diagnose.diagnose import diagnose
from coldproof.harness.proof.limits import ProofLimits
from coldproof.harness.proof.minimise.descent import descend, of_both_halves
from coldproof.harness.proof.minimise.on_fresh_engines import minimise_on_fresh_engines
from coldproof.harness.proof.minimise.reduce import joined, smaller
from coldproof.harness.proof.minimise.simplify import simpler
from coldproof.harness.proof.progress import Watched
from coldproof.harness.schema.case import Case, Diagnosis
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.workload.request_kinds import RequestKind
from coldproof.harness.workload.steps import Reset, RestoreState, SaveState, SetAdapter, Workload

RETRIES_WHILE_SHRINKING = 3  # runs of a workload that depends on timing
FURTHER = 2  # times the seconds for minimising, if the counterexample does not fail on a fresh engine by itself

Another = Callable[[], tuple[CheckedEngine | None, str]]  # a fresh engine, or why there is none


class ProofPipeline:
    """Minimises, confirms and diagnoses the counterexamples of one cell.

    `observe` runs a workload and judges it, `minimising` for a variant of the counterexample; `controls` makes the
    engines that the controls of a case run on; `limits` returns what the time that is left allows for.
    """

    def __init__(
        self,
        observe: Observe,
        engines: CellEngines,
        controls: Callable[[], ControlEngines],
        limits: Callable[[], ProofLimits],
        minimising: Observe | None = None,
    ) -> None:
        self.observe, self.engines, self.controls, self.limits = observe, engines, controls, limits
        self.minimising = minimising or observe

    def prove(self, found: Counterexamples, is_known: Callable[[Case], bool]) -> tuple[Case, Confirmed]:
        """Minimise the smallest counterexample, confirm it on a fresh engine and make its case.

        Replayed cases, known issues and further violations of one cause are not minimised on fresh engines: the first
        are minimal already, the second are waived, and of the third there is a minimal one.
        """
        requirement, engines = found.requirement, self.engines
        cold = requirement.without_cache
        if found.waived_at_once and (known := self.known(requirement, found.smallest, is_known)) is not None:
            return known
        failing = found.smallest if found.replayed or found.minimised else self.minimise(found)
        if found.waived_at_once and not found.minimised:
            known = self.known(requirement, failing, is_known)
            if known is not None:
                return known
        with engines.standby.one_by_one(caching=not cold) as another:
            engine, problem = another()
            control, own_control = engines.control(cold=cold)
            confirmed = self.confirm(requirement, failing, engine, control, running=self.tested(cold=cold))
            if engine is not None and not confirmed.reproduction.failed_again:
                confirmed = self.confirm_further(found, confirmed, another, control)
                if not confirmed.reproduction.failed_again:
                    confirmed = self.confirm_on_tested(requirement, failing, confirmed, control)
            elif engine is not None and not found.replayed:
                seen = self.case(requirement, confirmed, problem=problem)
                if not is_known(seen) and seen.signature not in found.causes:
                    confirmed = self.minimise_on_fresh(requirement, confirmed, engine, another, control)
        case = self.case(requirement, confirmed, problem=problem)
        if own_control and control is not None:
            engines.pool.close_engine(control)
        if not cold and not found.replayed:
            engines.standby.order(caching=True)  # another requirement may fail as well, and starting is slow
        return case, confirmed

    def known(
        self, requirement: Requirement, failing: Failing, is_known: Callable[[Case], bool]
    ) -> tuple[Case, Confirmed] | None:
        """Return the case of a counterexample that fails again on the engine under test, if it is known: at once, or
        after its control on the cold engine, which tells what is not the cache's fault.
        """
        note = "not replayed on a fresh engine: a known issue waives it here, and another layer confirms it"
        for control in dict.fromkeys((None, None if requirement.without_cache else self.engines.oracle_engine)):
            seen = self.confirm(requirement, failing, None, control)
            if is_known(self.case(requirement, seen, problem="")):
                seen = self.confirm_on_tested(requirement, failing, seen, control)
                seen = msgspec.structs.replace(seen, reproduction=msgspec.structs.replace(seen.reproduction, note=note))
                case = self.case(requirement, seen, problem="")
                return (case, seen) if seen.reproduction.failed_again and is_known(case) else None
        return None

    def confirm_on_tested(
        self, requirement: Requirement, failing: Failing, confirmed: Confirmed, control: CheckedEngine | None
    ) -> Confirmed:
        """Replay a counterexample on the engine under test, on which it failed and whose prior workloads it may need.

        Return `confirmed`, with the counts of these replays, if it passes there.
        """
        again = self.confirm(requirement, failing, None, control, running=self.tested(cold=requirement.without_cache))
        counts = again.reproduction
        reproduction = msgspec.structs.replace(
            confirmed.reproduction, running_failed=counts.running_failed, running_tries=counts.running_tries
        )
        shown = again if counts.failed_again else confirmed
        return msgspec.structs.replace(shown, reproduction=reproduction, history_dependent=confirmed.history_dependent)

    def as_seen(self, requirement: Requirement, failing: Failing, *, note: str, controlled: bool) -> Case:
        """Return the case of a failure of a saved workload, as it was seen: it is a replay. `note`: of what.

        `controlled`: run it without prefix caching too, which tells what is not the cache's fault.
        """
        control, own_control = self.engines.control(cold=requirement.without_cache) if controlled else (None, False)
        seen = self.confirm(requirement, failing, None, control)
        if own_control and control is not None:
            self.engines.pool.close_engine(control)
        reproduction = msgspec.structs.replace(
            seen.reproduction, running_failed=failing.failed, running_tries=failing.tries, note=note
        )
        return self.case(requirement, msgspec.structs.replace(seen, reproduction=reproduction), problem="")

    def minimise(self, found: Counterexamples) -> Failing:
        """Remove what the counterexample does not need, within the time limit."""
        cold = found.requirement.without_cache
        engine = self.tested(cold=cold)
        observe = self.watched(f"minimising {found.requirement.id}", self.minimising)
        return descend(
            found.smallest,
            of_both_halves(lambda w, about: chain(cuts(found.requirement, w, about), joined(w, about))),
            lambda workload: self.fails_again(workload, engine, observe),
            until=time.monotonic() + self.limits().minimising(waivable=found.waivable, familiar=bool(found.causes)),
        )

    def watched(self, doing: str, observe: Observe | None = None) -> Watched:
        """Return `observe`, with progress."""
        return Watched(observe or self.observe, self.engines.pool.log.emit, doing)

    def fails_again(self, workload: Workload, engine: CheckedEngine, observe: Observe) -> Failing | None:
        """Run a workload, several times if it depends on timing; return its first failure, or None."""
        tries = RETRIES_WHILE_SHRINKING if workload.depends_on_timing() else 1
        for attempt in range(1, tries + 1):
            judgement = observe(engine, workload)
            if judgement.findings:
                return Failing(workload, judgement, failed=1, tries=attempt)
        return None

    def tested(self, *, cold: bool) -> CheckedEngine:
        """Return the engine under test, or the engine without its cache (`cold`) if there is one."""
        engine = self.engines.oracle_engine
        return engine if cold and engine is not None else self.engines.engine

    def confirm(
        self,
        requirement: Requirement,
        failing: Failing,
        fresh: CheckedEngine | None,
        control: CheckedEngine | None,
        *,
        running: CheckedEngine | None = None,
    ) -> Confirmed:
        """Replay a counterexample on the given engines."""
        engines = self.engines
        oracle, rule = engines.oracle_and_rule(ground=requirement.without_cache)
        across = oracle.name if isinstance(oracle, OtherEngine) else None
        own = engines.pool.oracles.oracle_for("fresh-engine", fresh, engines.cell) if fresh else None
        return confirm(
            failing,
            observe=self.watched(f"replaying the counterexample of {requirement.id}"),
            fresh=fresh,
            fresh_oracle=own if fresh or not across else engines.cold,
            control=control,
            running=running,
            replays=self.limits().replays_of(engines.latest_seconds),
            rule=rule,
            across=across,
        )

    def confirm_further(
        self, found: Counterexamples, confirmed: Confirmed, another: Another, control: CheckedEngine | None
    ) -> Confirmed:
        """Replay larger counterexamples, or this one after its prior workloads: it did not fail on a fresh engine."""
        return confirm_further(
            confirmed,
            [found.first, found.smallest],
            start=lambda: another()[0],
            confirm=lambda larger, fresh: self.confirm(found.requirement, larger, fresh, control),
            rerun=self.rerun,
            observe=self.watched(f"replaying larger counterexamples of {found.requirement.id}"),
            control=control,
            seconds=FURTHER * self.limits().minimise_seconds,
        )

    def minimise_on_fresh(
        self,
        requirement: Requirement,
        confirmed: Confirmed,
        engine: CheckedEngine,
        another: Another,
        control: CheckedEngine | None,
    ) -> Confirmed:
        """Minimise once more, on fresh engines. If starting is slow, one engine runs all variants and another one
        confirms the result.
        """
        quick = self.engines.pool.options.quick
        if not quick:
            self.engines.standby.order(caching=not requirement.without_cache)
        return minimise_on_fresh_engines(
            confirmed,
            engine,
            another=(lambda: another()[0]) if quick else None,
            variants=of_both_halves(lambda w, about: chain(cuts(requirement, w, about), joined(w, about), simpler(w))),
            observe=self.watched(f"minimising {requirement.id} on fresh engines", self.minimising),
            confirm=lambda smallest: self.confirm(requirement, smallest, another()[0], control),
            until=time.monotonic() + self.limits().minimise_seconds,
        )

    def rerun(self, engine: CheckedEngine, ran: Ran) -> History:
        """Run a prior workload again, under its own nonce."""
        return self.engines.run(self.engines.live_engine(engine), ran.workload, ran.nonce)

    def diagnose(self, confirmed: Confirmed) -> Diagnosis | None:
        """Run the controls of a case. Return None if no replay failed, because controls then prove nothing."""
        if not any(judgement.findings for judgement in confirmed.replays):
            return None
        judgement, options = confirmed.judgement, self.engines.pool.options
        controls = controls_of(
            judgement.history.workload,
            judgement.worst().request,
            salts=self.engines.can(Capability.CACHE_SALT),
            blocks=by_chance(judgement.history.shape) == 0,
        )
        variants = variants_of(self.engines.cell, judgement.history.shape, options.engine_args)
        with self.controls() as control_engines:
            return diagnose(
                confirmed,
                controls=controls,
                variants=() if options.attached else variants,
                engines=control_engines,
                observe=self.watched("running the controls"),
                seconds=self.limits().controls_seconds,
            )

    def crashing_kind(self, confirmed: Confirmed, *, cold: bool) -> RequestKind | None:
        """Return the kind of request that a confirmed crash is due to; None if no kind is, or on an attached server.

        `cold`: the engine without its cache crashed.
        """
        if self.engines.pool.options.attached:
            return None
        with self.engines.standby.one_by_one(caching=not cold) as another:
            return crashing_kind(
                confirmed.judgement.history.workload,
                start=lambda: another()[0],
                observe=self.watched("running the crash without each kind of request"),
            )

    def case(self, requirement: Requirement, confirmed: Confirmed, *, problem: str) -> Case:
        """Return the case of a confirmed counterexample. `problem`: why no fresh engine started, or ""."""
        engines, cold = self.engines, requirement.without_cache
        reproduction = confirmed.reproduction
        if problem:
            reproduction = msgspec.structs.replace(reproduction, note=f"no fresh engine started: {problem[:300]}")
        tested = self.tested(cold=cold)
        oracle, rule = engines.oracle_and_rule(ground=cold)
        return make_case(
            requirement=requirement,
            cell=engines.cell.name,
            layer=engines.pool.options.layer if engines.pool.options.joined else "",
            judgement=confirmed.judgement,
            failure_class=FailureClass.NOT_THE_CACHE if cold else confirmed.failure_class,
            reproduction=reproduction,
            engine=tested,
            oracle=oracle.name,
            rule=rule,
            recipes={name: files.recipe for name, files in engines.contents.items()},
            options=engines.pool.options,
            history_dependent=confirmed.history_dependent,
            log_tail=confirmed.judgement.history.log_tail or tested.log_tail(),
            mixtures=() if cold else suspected_mixtures(confirmed),
        )


def cuts(requirement: Requirement, workload: Workload, about: int | None) -> Iterator[Workload]:
    """Return smaller workloads that keep the steps which the requirement is about."""
    keep: tuple[type, ...] = (SetAdapter,) if requirement.without_cache else ()
    if with_trait(Trait.OF_RESETS, requirement.shows):
        keep += (Reset,)  # without it the workload may fail because of another fault
    if with_trait(Trait.OF_SAVED_STATE, requirement.shows):
        keep += (SaveState, RestoreState)  # for the same reason
    return smaller(workload, about, keep=keep)
