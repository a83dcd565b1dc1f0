"""The fixture `sut` of a requirement's test: runs workloads on the engine, judges them, keeps counterexamples.

A verdict follows from the recorded evidence and findings, never from how a test function ended.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import msgspec
from hypothesis import currently_in_test_context, event, target

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.spec.cell import Cell
from coldproof.harness.execution.engines.cell_engines import CellEngines
from coldproof.harness.execution.models.cache_folder import generated_files
from coldproof.harness.execution.observer import Observer
from coldproof.harness.judgement.collect import with_trait
from coldproof.harness.judgement.counters import Trait
from coldproof.harness.judgement.criteria import OF_ANSWERS
from coldproof.harness.judgement.dropped_kind import DroppedKind
from coldproof.harness.judgement.judge import Judgement
from coldproof.harness.judgement.mixtures import mixtures_of
from coldproof.harness.judgement.reach.collect import reached, seen_by
from coldproof.harness.judgement.requirement import Absent, Requirement, missing
from coldproof.harness.judgement.trial import Failing, Trial, Violation
from coldproof.harness.judgement.weight_pairs import pair_counts
from coldproof.harness.proof.confirm.confirm import Confirmed
from coldproof.harness.proof.confirm.mixtures import without_disproved_mixtures
from coldproof.harness.proof.diagnose.control_engines import ControlEngines
from coldproof.harness.proof.diagnose.crashing_kind import got_no_answer
from coldproof.harness.proof.limits import ProofLimits
from coldproof.harness.proof.pipeline import RETRIES_WHILE_SHRINKING, ProofPipeline
from coldproof.harness.schema.case import Case
from coldproof.harness.schema.evidence import ReportedEvidence
from coldproof.harness.session.budget import Budget, TrialEnded
from coldproof.harness.session.failure_marks import FailureMarks, Waive, filtered, kind_of
from coldproof.harness.session.reach_corpus import ReachCorpus, read_corpus, write_corpus
from coldproof.harness.session.schedule import waits_for_proof
from coldproof.harness.session.workload_limits import pool_hint, scale_note, workload_limits
from coldproof.harness.workload.request_kinds import probe_of
from coldproof.harness.workload.steps import Workload
from coldproof.harness.workload.transform import with_unique_salts


class CurrentTrial(msgspec.Struct, frozen=True):
    """The current trial, with its observer and its proof pipeline."""

    trial: Trial
    observe: Observer
    proof: ProofPipeline
    marks: FailureMarks


# Of evidence that rests on the engine's counters and gauges.
SHARED = (
    "An attached server may have other clients, and its counters are those of all: they are compared with --exclusive, "
    "which says that there are none"
)


class SystemUnderTest:
    """The engines of one cell. Requirements are tested on them one after the other."""

    def __init__(
        self, engines: CellEngines, budget: Budget, proof_left: Callable[[], float] = lambda: math.inf
    ) -> None:
        """Take running engines and the budget of the run. `limits` bounds the workloads that generators draw.

        `proof_left`: the seconds that are left for proofs.
        """
        self.engines, self.budget, self.proof_left = engines, budget, proof_left
        self.limits = workload_limits(engines, trial_seconds=budget.at_first)
        budget.slow = self.limits.slow
        engines.note(scale_note(self.limits, engines.calibration.answer_seconds, budget.at_first))
        self.proof_limits = ProofLimits.of(engines.pool.profile, quick=engines.pool.options.quick)
        self._current: CurrentTrial | None = None
        self.state_counts: Counter[str] = Counter()  # of examples, over all trials
        self.corpus: ReachCorpus | None = None  # of the current trial, if generation is guided

    @property
    def cell(self) -> Cell:
        """Return the cell of the engines."""
        return self.engines.cell

    @property
    def unique_salts(self) -> bool:
        """Return whether caching cannot be disabled here, so that a cold request needs a unique salt."""
        return self.engines.oracle_engine is None

    def can(self, capability: Capability) -> bool:
        """Return whether the engine under test has a capability. For workloads that use it optionally."""
        return self.engines.can(capability)

    def unmet_needs(self, requirement: Requirement) -> list[Absent]:
        """Return the needs of a requirement that the engine does not meet."""
        engines = self.engines
        contents, versions = len(engines.contents), len(self.limits.versions)
        return missing(engines.engine.capabilities, requirement.needs, contents=contents, versions=versions)

    def begin(self, trial: Trial, waive: Waive = lambda _: None) -> None:
        """Make this the current trial. `waive`: returns the known issue that waives a failure, or None."""
        engines, marks = self.engines, FailureMarks(trial, waive)
        # A known issue is not worth the time of a closer look.
        observe = Observer(engines, trial.requirement, doubts=lambda: not trial.waivable)

        def controls() -> ControlEngines:
            return ControlEngines(engines.pool, engines.cell, engines.engine, engines.standby)

        def limits() -> ProofLimits:
            of_trial = self.proof_limits.hurried() if trial.hurried else self.proof_limits
            return of_trial.within(self.proof_left(), slow=self.budget.slow and not engines.pool.options.keeps_budget)

        proof = ProofPipeline(
            filtered(observe, marks.without_put_aside),
            engines,
            controls,
            limits,
            minimising=filtered(observe, marks.counting),
        )
        self._current = CurrentTrial(trial, observe, proof, marks)
        if engines.pool.options.guided and not trial.requirement.without_cache:
            self.corpus = ReachCorpus(self.state_counts, read_corpus(self.corpus_file(trial)))
        self.limits = msgspec.structs.replace(self.limits, guidance=self.corpus, leads=trial.leads)

    def end(self) -> None:
        """End the current trial."""
        if self.corpus is not None:
            write_corpus(self.corpus_file(self.current().trial), self.corpus)
        self.corpus = self._current = None

    def corpus_file(self, trial: Trial) -> Path:
        """Return the file of the workloads that a trial keeps for later runs."""
        options = self.engines.pool.options
        folder = generated_files(options.cache_dir) / "reach" / f"{options.engine}-{options.worker}"
        return folder / self.cell.name / f"{trial.requirement.id}.json"

    def current(self) -> CurrentTrial:
        """Return the current trial. Raises RuntimeError if there is none."""
        if self._current is None:
            raise RuntimeError("a workload can only be checked inside a test with the decorator @requirement")
        return self._current

    def remark(self, words: str) -> None:
        """Add an observation to the reason of the verdict, which is used if nothing fails."""
        self.current().trial.remark = words

    def check_updates(self, workload: Workload) -> Judgement | None:
        """Do the same for updates of the weights. The verdict's reason then says which promise was tested."""
        self.remark(str(self.engines.promise))
        return self.check(workload)

    def check(self, workload: Workload) -> Judgement | None:
        """Run a workload on the engine under test, and judge it. Raises Violation if it violates the requirement.

        Returns None for a workload that is not judged: one that is known to pass while a counterexample is minimised,
        or one that also fails without the cache. Raises TrialEnded when the time is over, also that for minimising.
        """
        return self.examine(workload, self.engines.engine)

    def check_without_cache(self, workload: Workload) -> None:
        """Do the same on the engine with the cache off. A failure there is not the cache's fault (GROUND-1)."""
        self.examine(workload, self.engines.oracle_engine or self.engines.engine)

    def examine(self, workload: Workload, engine: CheckedEngine) -> Judgement | None:
        """Run and judge a workload, and keep a counterexample. Repeats timing-dependent workloads while minimising.

        An example that fails only in ways that the trial has put aside is counted, and is no counterexample.
        """
        trial, marks = self.current().trial, self.current().marks
        search = trial.search
        workload, not_sent = self.engines.pool.dropped.without(workload, trial.requirement.needs)
        trial.narrow(not_sent)
        if search.best is None and not trial.replaying and self.budget.is_spent(trial):
            raise TrialEnded
        key = msgspec.json.encode(workload)
        if key in search.failed:
            raise_violation("fails, as in an earlier run")
        if search.best is not None and self.minimising_timed_out(trial):
            raise TrialEnded
        if search.best is not None and key in search.passed:
            return None
        tries = RETRIES_WHILE_SHRINKING if search.best is not None and workload.depends_on_timing() else 1
        for attempt in range(1, tries + 1):
            engine = self.engines.live_engine(engine)
            earlier = self.engines.runs_of(engine)
            seen = self.observe(engine, workload)
            judgement = marks.counting(seen)
            if judgement.findings and self.fails_without_cache_too(judgement):
                return None
            trial.add(seen)
            states = reached(judgement.history)
            self.emit_example(seen, trial, states)
            if attempt == 1:
                guide_generation(judgement)
                self.note_reach(workload, states, failed=bool(judgement.findings))
            if judgement.findings:
                classes = [one.failure_class for one in judgement.findings]
                trial.waits = waits_for_proof(trial, classes) and not self.forbids_more(judgement)
                self.keep_counterexample(
                    trial, key, Failing(workload, judgement, failed=1, tries=attempt, earlier=earlier)
                )
                if trial.waits:
                    raise TrialEnded  # it is minimised when it is proved
                raise_violation(judgement.worst().sentence)
        search.passed.add(key)
        if seen.findings:
            if search.best is None:
                marks.count(seen)
            return None
        self.note_hints(trial)
        return judgement

    def note_hints(self, trial: Trial) -> None:
        """Record why this cell cannot show some evidence, or what would, and whether the trial lacks some of that."""
        shared = self.engines.pool.options.shared
        hints = {
            Trait.SMALL_POOL: pool_hint(self.limits),
            Trait.HIT_COUNTS: cached_count_hint(self.engines.engine),
            Trait.EXCLUSIVE: SHARED if shared else "",
        }
        trial.hints |= {trait: hint for trait, hint in hints.items() if hint}
        never = ((Trait.SMALL_POOL, self.limits.pool_is_too_large), (Trait.EXCLUSIVE, shared))
        trial.out_of_reach = any(here and with_trait(trait, trial.missing()) for trait, here in never)

    def check_diverging(self, trial: Trial) -> None:
        """Run the examples again in which more answers diverged than rounding explains; now each difference counts.

        Keep a counterexample if an answer diverges again. Without an exact rule there is nothing to repeat: noise
        makes such answers diverge in every replay.
        """
        _, rule = self.engines.oracle_and_rule(ground=trial.requirement.without_cache)
        if not rule.exact:
            return
        self.engines.refute_rounding()
        cold = self.engines.oracle_engine if trial.requirement.without_cache else None
        for workload in trial.diverging:
            engine = self.engines.live_engine(cold or self.engines.engine)
            earlier = self.engines.runs_of(engine)
            judgement = self.observe(engine, workload)
            trial.add(judgement)
            self.emit_example(judgement, trial, reached(judgement.history))
            if judgement.findings:
                failing = Failing(workload, judgement, failed=1, tries=1, earlier=earlier)
                self.keep_counterexample(trial, msgspec.json.encode(workload), failing)
                return

    def fails_again(self, workload: Workload, nonce: str) -> Failing | None:
        """Replay a workload that has failed until it fails again, first under its own nonce; None if it does not."""
        trial = self.current().trial
        for attempt in range(1, self.engines.pool.profile.replays + 1):
            cold = self.engines.oracle_engine if trial.requirement.without_cache else None
            engine = self.engines.live_engine(cold or self.engines.engine)
            earlier = self.engines.runs_of(engine)
            judgement = self.observe(engine, workload, nonce if attempt == 1 else None)
            trial.add(judgement)
            self.emit_example(judgement, trial, reached(judgement.history))
            if judgement.findings:
                return Failing(workload, judgement, failed=1, tries=attempt, earlier=earlier)
        return None

    def observe(self, engine: CheckedEngine, workload: Workload, nonce: str | None = None) -> Judgement:
        """Run a workload once and judge it. A failure that is no finding ends the trial: it would occur again."""
        current = self.current()
        try:
            return current.observe(engine, workload, nonce)
        except Exception as problem:
            current.trial.problem = problem
            raise TrialEnded from problem

    def fails_without_cache_too(self, judgement: Judgement) -> bool:
        """Return whether the same mixture of models also fails without the cache: not the cache's fault.

        The calibration can miss this. The mixtures are then excluded from further workloads. Without a cold engine,
        each request gets an unused salt.
        """
        current, engines = self.current(), self.engines
        mixtures = self.drawn_mixtures(judgement)
        if not mixtures or current.trial.requirement.without_cache or judgement.worst().checker not in OF_ANSWERS:
            return False
        engine, workload = engines.oracle_engine or engines.engine, judgement.history.workload
        if self.unique_salts:
            if not self.can(Capability.CACHE_SALT):
                return False
            workload = with_unique_salts(workload)
        if not any(current.observe(engine, workload, ground=True).findings for _ in range(RETRIES_WHILE_SHRINKING)):
            return False
        self.exclude_mixtures(mixtures)
        return True

    def forbids_more(self, judgement: Judgement) -> bool:
        """Return whether a failure without a cache may keep other trials from mixtures that are not excluded yet.

        One in which an excluded mixture ran is explained by that.
        """
        if not self.current().trial.requirement.without_cache:
            return False
        return mixtures_of(judgement.history) <= self.limits.mixtures

    def drawn_mixtures(self, judgement: Judgement) -> frozenset[str]:
        """Return the mixtures of models that ran concurrently and are not excluded yet."""
        return mixtures_of(judgement.history) & self.limits.mixtures

    def exclude_mixtures(self, mixtures: frozenset[str]) -> None:
        """Stop drawing mixtures whose answers differ even without caching, and record them in the report."""
        self.limits = msgspec.structs.replace(self.limits, mixtures=self.limits.mixtures - mixtures)
        for mixture in sorted(mixtures):
            self.engines.exclude_mixture(mixture)

    def minimising_timed_out(self, trial: Trial) -> bool:
        """Return whether the time for minimising is over. The smallest counterexample so far is then confirmed."""
        since = trial.search.since
        familiar = bool(trial.causes) or trial.waived_at_once
        seconds = self.current().proof.limits().minimising(waivable=trial.waivable, familiar=familiar)
        return since is not None and time.monotonic() - since > seconds

    def keep_counterexample(self, trial: Trial, key: bytes, failing: Failing) -> None:
        """Keep the smallest counterexample. At the first one, order a fresh engine, unless its confirmation waits."""
        if trial.search.first is None and not trial.waived_at_once and not trial.waits:
            self.engines.standby.order(caching=not trial.requirement.without_cache)
        if trial.marks and trial.search.kind is None:
            trial.search.kind = kind_of(failing.judgement.worst())
        trial.search.failed.add(key)
        trial.search.keep(failing)

    def note_reach(self, workload: Workload, states: dict[str, int], *, failed: bool) -> None:
        """Keep a workload that reached rare states, if generation is guided and nothing has failed yet."""
        if self.corpus is None:
            return
        if currently_in_test_context():
            target(sum(1 / (1 + self.state_counts[state]) for state in states), label="rare states")
        self.corpus.frozen = self.corpus.frozen or failed
        self.corpus.note(workload, states)

    def emit_example(self, judgement: Judgement, trial: Trial, states: dict[str, int], *, finding: str = "") -> None:
        """Emit the example, so that `coldproof rejudge` can re-evaluate it. `finding`: of which it is a replay."""
        self.engines.pool.log.emit(
            "example",
            requirement=trial.requirement.id,
            cell=trial.cell,
            test=trial.test,
            finding=finding,
            rule=judgement.rule,
            exclusive=judgement.exclusive,
            history=judgement.history,
            answers=[[asked, answer] for asked, answer in judgement.answers.items()],
            evidence=judgement.evidence,
            # Minimising repeats one failure many times: its examples would inflate the counts.
            weight_pairs=pair_counts(judgement.history, judgement.findings) if trial.search.since is None else [],
            findings=judgement.findings,
            noise=judgement.noise,
            permitted=judgement.permitted,
            reach=states,
            seen=seen_by(judgement.history),
        )

    def confirm(self, trial: Trial, is_known: Callable[[Case], bool]) -> tuple[Case, Confirmed]:
        """Confirm the counterexample of a trial, and return its case. Excludes mixtures that fail without a cache.

        `is_known`: returns whether a known issue waives a case.
        """
        found = trial.counterexamples()
        if found is None:
            raise RuntimeError("the trial has no counterexample to confirm")
        case, confirmed = self.current().proof.prove(found, is_known)
        if found.requirement.without_cache:
            self.exclude_mixtures(self.drawn_mixtures(confirmed.judgement))
        return case, confirmed

    def probes(self, requirement: Requirement) -> list[Workload]:
        """Return workloads of the kinds of requests of which the engine died in the calibration, if this is about them.

        Such a request is not sent anywhere else before a fresh engine has died of it too.
        """
        kinds = self.engines.pool.dropped.suspected(requirement.needs)
        return [probe for kind in kinds if (probe := probe_of(kind, 2 * self.limits.unit)) is not None]

    def drop_crashing_kind(self, case: Case, confirmed: Confirmed) -> None:
        """If the engine dies of one kind of request in a confirmed case, stop sending this kind in this run."""
        if not got_no_answer(confirmed.judgement):
            return
        current = self.current()
        kind = current.proof.crashing_kind(confirmed, cold=current.trial.requirement.without_cache)
        if kind is None:
            return
        self.engines.drop_kind(
            DroppedKind(
                kind=kind,
                cell=self.cell.name,
                requirement=case.requirement,
                why=case.sentence,
                case=case.id,
                known_issue=case.known_issue,
            )
        )

    def with_controls(self, case: Case, confirmed: Confirmed) -> Case:
        """Return the case with the results of its controls. A failure without the cache has no controls."""
        current = self.current()
        if current.trial.requirement.without_cache:
            return case
        diagnosed = msgspec.structs.replace(case, diagnosis=current.proof.diagnose(confirmed))
        return without_disproved_mixtures(diagnosed)


def cached_count_hint(engine: CheckedEngine) -> str:
    """Return why cached-token counts are unknown; empty if the engine reports them."""
    counts = engine.capabilities[Capability.CACHED_TOKENS]
    if counts.present is True:
        return ""
    return f"This evidence requires an engine or cell that reports cached-token counts. Here: {counts.evidence}."


def raise_violation(sentence: str) -> NoReturn:
    """Raise Violation. Hypothesis identifies failures by the line that raises, so all are raised here."""
    raise Violation(sentence)


def guide_generation(judgement: Judgement) -> None:
    """Let hypothesis target more hits and more chances to detect a stale hit, and count them in its statistics."""
    if not currently_in_test_context():
        return
    target(float(judgement.evidence[ReportedEvidence.HIT_TOKENS]), label="hit tokens")
    target(float(judgement.evidence[ReportedEvidence.DISCRIMINATING]), label="chances to detect a stale hit")
    event("hit the cache" if judgement.evidence[ReportedEvidence.HIT_TOKENS] else "no hit")
