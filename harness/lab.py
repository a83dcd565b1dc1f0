"""Where a requirement is put to an engine: run a workload, judge it, keep the smallest counterexample, conclude.

A verdict is derived from what was observed, never from how a test function ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NoReturn

import msgspec
from hypothesis import currently_in_test_context, event, target

from adapters.base import Capability
from adapters.checked import CheckedEngine
from harness.budget import BudgetSpent
from harness.cell import Cell
from harness.confirm import Confirmed
from harness.evidence import Evidence
from harness.generators.prompts import BASE_WITH_ADAPTER, DEFAULT_BLOCK, Grounds
from harness.judge import Judgement
from harness.prover import RETRIES_WHILE_SHRINKING, Prover
from harness.requirement import Failing, Trial, Violation
from harness.session import Session
from harness.workload import Workload
from reports.schema import Case


class Lab(Prover):
    """A bench on which requirements are tested, one after the other."""

    def __init__(self, session: Session, cell: Cell) -> None:
        super().__init__(session, cell)
        self.grounds = self.make_grounds()
        self.confirmed_last: Confirmed | None = None
        if not all(self.calibration.mixtures.values()) and self.oracle_engine is not None:
            self.standby.order(caching=False)  # GROUND-1 is going to need it

    def make_grounds(self) -> Grounds:
        """What generators may build of in this cell."""
        shape = self.engine.shape
        return Grounds(
            block=shape.block_size or DEFAULT_BLOCK,
            slots=shape.adapter_slots or 1,
            contents=tuple(self.contents) or ("A",),
            longest=shape.max_model_tokens,
            mixtures=frozenset(m for m, holds in self.calibration.mixtures.items() if holds),
            pool=shape.pool_blocks * shape.block_size if shape.pool_blocks and shape.block_size else None,
            most_tokens=self.session.profile.tokens,
            can=frozenset(c for c in Capability if self.can(c)),
        )

    @property
    def unique_salts(self) -> bool:
        """Whether caching cannot be switched off here, so that a cold request needs a salt of its own."""
        return self.oracle_engine is None

    def remark(self, words: str) -> None:
        """Something that was seen, for the reason of a verdict that nothing failed."""
        self.current().remark = words

    def note_room(self, trial: Trial) -> None:
        """Where the pool cannot be filled here, what would: for the verdict of a requirement that needs pressure."""
        if self.grounds.small_pool is None:
            pool = "of unknown size" if self.grounds.pool is None else f"of {self.grounds.pool} tokens"
            trial.hint = (
                f"The pool is {pool}; a workload here comes to at most {self.grounds.most_tokens} tokens and has to be "
                "twice the pool: make the pool smaller (vLLM: --num-gpu-blocks-override, SGLang: --max-total-tokens) "
                "or choose a larger profile."
            )

    def note_counts(self, trial: Trial) -> None:
        """Where nothing tells what was hit, what would: for the verdict of a requirement that needs hits."""
        counts = self.engine.capabilities[Capability.CACHED_TOKENS]
        if counts.present is not True:
            trial.uncounted = f"An engine or a cell that counts hits would show it; of this one's, {counts.evidence}."

    def check(self, workload: Workload) -> Judgement | None:
        """Run a workload on the engine under test; None where it was run before. Raises Violation when the requirement
        is broken by it.
        """
        return self.examine(workload, self.engine)

    def check_without_cache(self, workload: Workload) -> None:
        """The same on the engine whose cache is off: what fails there is not the cache's fault (GROUND-1)."""
        self.examine(workload, self.oracle_engine or self.engine)

    def examine(self, workload: Workload, engine: CheckedEngine) -> Judgement | None:
        """Run, judge and remember; while a counterexample is being minimised, several times."""
        trial = self.current()
        if trial.best is None and not trial.replaying and self.session.budget.is_spent(trial):
            raise BudgetSpent
        key = msgspec.json.encode(workload)
        if key in trial.failed:
            fail("fails, as it did before")
        if trial.best is not None and (key in trial.passed or self.out_of_patience(trial)):
            return None
        tries = RETRIES_WHILE_SHRINKING if trial.best is not None and workload.depends_on_timing() else 1
        for attempt in range(1, tries + 1):
            engine = self.living(engine)
            earlier = self.ran_on(engine)
            judgement = self.observe(engine, workload)
            if judgement.findings and self.ground_gives_way(judgement):
                return None
            trial.add(judgement)
            self.tell(judgement, trial)
            if attempt == 1:
                steer(judgement)
            if judgement.findings:
                self.remember(trial, key, Failing(workload, judgement, failed=1, tries=attempt, earlier=earlier))
                fail(judgement.worst().sentence)
        trial.passed.add(key)
        self.note_room(trial)
        self.note_counts(trial)
        return judgement

    def ground_gives_way(self, judgement: Judgement) -> bool:
        """Whether a failure is the ground's: base and adapter requests ran side by side, and without any cache the same
        workload fails as well. The calibration can miss that; from here on this mixture is left out.
        """
        engine = self.oracle_engine
        mixed = judgement.evidence[Evidence.MIXED] and self.grounds.may_mix(BASE_WITH_ADAPTER)
        if engine is None or not mixed or self.on_cold(self.current()) or judgement.worst().checker != "tokens":
            return False
        workload = judgement.history.workload
        if not any(self.observe(engine, workload, ground=True).findings for _ in range(RETRIES_WHILE_SHRINKING)):
            return False
        self.leave_out(BASE_WITH_ADAPTER)
        return True

    def leave_out(self, mixture: str) -> None:
        """Stop drawing a mixture that the ground rule does not hold for, and say so in the report."""
        self.grounds = msgspec.structs.replace(self.grounds, mixtures=self.grounds.mixtures - {mixture})
        self.calibration = msgspec.structs.replace(
            self.calibration,
            mixtures={**self.calibration.mixtures, mixture: False},
            notes=[
                *self.calibration.notes,
                f"The mixture '{mixture}' was seen to fail with caching off; left out since.",
            ],
        )
        self.session.log.emit(
            "calibration", calibration=self.calibration, seconds=self.calibration_seconds, own_rule=self.own_rule
        )

    def out_of_patience(self, trial: Trial) -> bool:
        """Whether minimising has had its time: hypothesis then settles on the smallest example known."""
        since = trial.shrinking_since
        return since is not None and time.monotonic() - since > self.patience(trial)

    def remember(self, trial: Trial, key: bytes, failing: Failing) -> None:
        """Keep the smallest counterexample, and have a fresh engine started to confirm it on."""
        trial.failed.add(key)
        if trial.shrinking_since is None:
            trial.shrinking_since = time.monotonic()
            self.standby.order(caching=not self.on_cold(trial))
        trial.first = trial.first or failing
        if trial.best is None or failing.workload.size() < trial.best.workload.size():
            trial.best = failing

    def tell(self, judgement: Judgement, trial: Trial) -> None:
        """Write the example down for later judges."""
        self.session.log.emit(
            "example",
            requirement=trial.requirement.id,
            cell=trial.cell,
            test=trial.test,
            rule=judgement.rule,
            exclusive=judgement.exclusive,
            history=judgement.history,
            answers=[[asked, answer] for asked, answer in judgement.answers.items()],
            evidence=judgement.evidence,
            findings=judgement.findings,
            noise=judgement.noise,
            permitted=judgement.permitted,
        )

    def confirm(self, trial: Trial, is_known: Callable[[Case], bool]) -> Case:
        """The case of a trial that found something; a mixture that the ground gave way under is left out from now.

        `is_known`: whether a known issue waives a case.
        """
        case, self.confirmed_last = self.prove(trial, is_known)
        mixed = self.confirmed_last.judgement.evidence[Evidence.MIXED] and self.grounds.may_mix(BASE_WITH_ADAPTER)
        if self.on_cold(trial) and mixed:
            self.leave_out(BASE_WITH_ADAPTER)
        return case

    def with_controls(self, trial: Trial, case: Case) -> Case:
        """The case that was confirmed last, with what its controls say. What fails without the cache has none."""
        if self.confirmed_last is None or self.on_cold(trial):
            return case
        return msgspec.structs.replace(case, diagnosis=self.diagnose(self.confirmed_last))


def fail(sentence: str) -> NoReturn:
    """The one place to raise from: hypothesis tells failures apart by it and minimises one at a time."""
    raise Violation(sentence)


def steer(judgement: Judgement) -> None:
    """Let hypothesis look for more hits and more telling chances, and count them in its statistics."""
    if not currently_in_test_context():
        return
    target(float(judgement.evidence[Evidence.HIT_TOKENS]), label="hit tokens")
    target(float(judgement.evidence[Evidence.TELLING]), label="telling chances")
    event("hit the cache" if judgement.evidence[Evidence.HIT_TOKENS] else "no hit")
