"""Runs workloads on the engines of a cell and judges them for a requirement."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.harness.execution.engines.cell_engines import CellEngines
from coldproof.harness.execution.engines.deaths import ends_soon
from coldproof.harness.history.records import History
from coldproof.harness.judgement.criteria import LASTING, TOKENS
from coldproof.harness.judgement.judge import Judgement, judge
from coldproof.harness.judgement.oracle import OracleError
from coldproof.harness.judgement.requirement import Requirement
from coldproof.harness.workload.steps import Workload


class Observer:
    """Runs and judges workloads for one requirement. It replaces an engine of the cell that is lost at once.

    `doubts`: returns whether the first wrong answer of an exact engine leads to a closer look at its cold answers.
    """

    def __init__(
        self, engines: CellEngines, requirement: Requirement, doubts: Callable[[], bool] = lambda: True
    ) -> None:
        self.engines, self.requirement, self.doubts = engines, requirement, doubts
        self.renewed = 0  # engines that were replaced because a failure may have corrupted their state

    def __call__(
        self, engine: CheckedEngine, workload: Workload, nonce: str | None = None, *, ground: bool = False
    ) -> Judgement:
        """Run a workload once and judge it, under a new nonce if `nonce` is None. Run it again under a new rule if the
        engine turns out not to be exact.

        `ground`: compare with the engine's own cold answers. Raises EngineError or OracleError.
        """
        engine = self.engines.live_engine(engine)
        history = self.engines.run(engine, workload, nonce)
        if self.engines.ended:
            history = with_end(history, engine)
        attached = self.engines.pool.options.attached
        # An attached server that stalled may continue after its requests were aborted. Then it can still be judged.
        if history.engine_lost is not None and not (attached and engine.alive()):
            self.engines.replace_lost(engine)
        judgement = self.judged(history, engine, ground=ground or self.requirement.without_cache)
        if self.is_doubtful(judgement) and self.engines.look_again():
            if not self.engines.own_rule.exact:
                return self(engine, workload, ground=ground)  # a rule with a tolerance compares scores, which it lacks
            judgement = self.judged(history, engine, ground=ground or self.requirement.without_cache)
        if history.engine_lost is None and any(f.checker in LASTING for f in judgement.findings):
            self.renew(engine)
        return judgement

    def is_doubtful(self, judgement: Judgement) -> bool:
        """Return whether an answer differs under an exact rule, which may not hold: dozens of answers repeat by luck.

        A difference that rounding explains counts as well: how often it may do so depends on the same measurement.
        """
        differing = (*judgement.findings, *judgement.noise)
        return judgement.rule.exact and self.doubts() and any(f.checker == TOKENS for f in differing)

    def judged(self, history: History, engine: CheckedEngine, *, ground: bool) -> Judgement:
        """Judge a history. If the cold engine has crashed, replace it and try again."""
        cold = self.engines.oracle_engine
        exclusive = not self.engines.pool.options.shared and engine is not cold
        try:
            judgement = judge(history, *self.engines.oracle_and_rule(ground=ground), exclusive=exclusive)
        except OracleError:
            if cold is None or cold.alive() or engine is cold:
                raise
            self.engines.replace_lost(cold)
            judgement = judge(history, *self.engines.oracle_and_rule(ground=ground), exclusive=exclusive)
        return judgement.limited(self.requirement)

    def renew(self, engine: CheckedEngine) -> None:
        """Replace the engine under test, so that the next failure does not depend on this one.

        Engines with a quick start are replaced every time, servers once.
        """
        pool = self.engines.pool
        if engine is self.engines.engine and not pool.options.attached and (pool.options.quick or not self.renewed):
            self.renewed += 1
            words = "restarting the engine: the failure may have corrupted its state"
            pool.log.emit("phase", words=words, detail=True)
            self.engines.replace_lost(engine, lost=False)


def with_end(history: History, engine: CheckedEngine) -> History:
    """Return the history of an engine that ends after its answer "internal error", with that end and its log."""
    failed = any(outcome.error is not None and not outcome.refused for outcome in history.outcomes)
    if history.engine_lost is not None or not failed or not ends_soon(engine):
        return history
    return msgspec.structs.replace(history, engine_lost="the process has ended", log_tail=engine.log_tail())
