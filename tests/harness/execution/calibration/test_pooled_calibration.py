"""The calibration of an engine that pools: how much its vectors vary, and which mixtures change them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
from support import report_samples
from support.histories import contents

from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.protocol.engine import Served
from coldproof.adapters.protocol.pooling import Task
from coldproof.adapters.protocol.requests import Arrival, Completion, CompletionRequest
from coldproof.harness.execution.calibration.calibrate import earlier_calibration
from coldproof.harness.execution.calibration.pooled import TIMES, calibrate_pooled, tasks_of
from coldproof.harness.execution.oracles.engine import EngineOracle
from coldproof.harness.judgement.finding import Rule
from coldproof.harness.judgement.oracle import OracleError
from coldproof.harness.judgement.vectors import ROUNDING
from coldproof.harness.schema.results import Calibration, write_results
from coldproof.harness.session.selftest.scripted_engine import BLOCK, ScriptedEngine
from coldproof.harness.workload.generators.prompts import ADAPTERS_TOGETHER, BASE_WITH_ADAPTER

Shift = Callable[[list[CompletionRequest], int], float]  # (requests of the batch, place in it) -> added to each value


class Pooling(ScriptedEngine):
    """A cold engine that pools. Its values follow from model and prompt, and are shifted in batches."""

    def __init__(self, shift: Shift = lambda _batch, _place: 0.0, *, rows: int | None = None) -> None:
        super().__init__(caching=False)
        self.shift, self.rows = shift, rows
        self.names: set[str] = set()
        for capability in (Capability.EMBEDDINGS, Capability.TOKEN_EMBEDDINGS):
            self.capabilities[capability] = Support(True, "scripted")

    def load_adapter(self, name: str, path: str, *, in_place: bool) -> None:
        """Record what is loaded."""
        super().load_adapter(name, path, in_place=in_place)
        self.names.add(name)

    def complete(self, request: CompletionRequest) -> Completion:
        """Return the vectors of a batch of one."""
        return self.pooled([request], 0)

    def serve(
        self, arrivals: Sequence[Arrival], on_token: Callable[[int, int], None], between: Callable[[], None]
    ) -> list[Served]:
        """Return the vectors of a batch."""
        batch = [arrival.request for arrival in arrivals]
        return [Served(0.0, 0.0, self.pooled(batch, place)) for place in range(len(batch))]

    def pooled(self, batch: list[CompletionRequest], place: int) -> Completion:
        """Return vectors of two values."""
        request = batch[place]
        assert request.options.pooled is not None
        assert request.max_tokens == 0
        value = len(request.prompt) + self.shift(batch, place)
        rows = ((value, 1.0),) * (self.rows or request.options.pooled.rows(len(request.prompt)))
        return Completion(tokens=(), finish_reason=None, cached_tokens=None, pooled=rows)


def calibrated(engine: Pooling, folder: Path) -> tuple[Calibration, Rule]:
    """Calibrate with three adapter contents and four slots."""
    oracle = EngineOracle("cold-engine", engine, list(contents(folder).values()), memo={})
    return calibrate_pooled(oracle, list(oracle.adapters), tasks_of(engine), cell="pooling", block=BLOCK, slots=4)


def test_an_engine_that_generates_has_no_tasks() -> None:
    """An engine that pools has its own tasks."""
    assert tasks_of(ScriptedEngine()) == ()
    assert tasks_of(Pooling()) == (Task.EMBED, Task.TOKEN_EMBED)


@pytest.mark.parametrize(
    ("by", "exact", "tolerance"), [(0.0, True, ROUNDING), (1e-7, False, ROUNDING), (1e-3, False, TIMES * 1e-3)]
)
def test_the_tolerance_is_a_multiple_of_what_batches_change(
    by: float, exact: bool, tolerance: float, tmp_path: Path
) -> None:
    """The tolerance is never below rounding."""
    found, rule = calibrated(Pooling(lambda batch, _: by * (len(batch) > 1)), tmp_path)
    assert rule.exact is found.exact is exact
    assert rule.pooled == found.pooled == pytest.approx(tolerance, rel=1e-6)
    assert found.mixtures == {ADAPTERS_TOGETHER: True, BASE_WITH_ADAPTER: True}


def test_a_mixture_that_changes_vectors_is_named(tmp_path: Path) -> None:
    """The mixture does not widen the tolerance. Every slot is in use."""

    def mixed(batch: list[CompletionRequest], place: int) -> float:
        return 0.5 if batch[place].model == "base" and len({one.model for one in batch}) > 1 else 0.0

    engine = Pooling(mixed)
    assert engine.base_model == "base"
    found, rule = calibrated(engine, tmp_path)
    assert rule.pooled == ROUNDING
    assert found.mixtures == {ADAPTERS_TOGETHER: True, BASE_WITH_ADAPTER: False}
    assert any(BASE_WITH_ADAPTER in words for words in found.notes)
    assert len([name for name in engine.names if name.startswith("slot-")]) == 4


def test_an_oracle_without_vectors_is_refused(tmp_path: Path) -> None:
    """An oracle whose number of vectors varies is refused too."""

    class Empty(Pooling):
        def pooled(self, batch: list[CompletionRequest], place: int) -> Completion:
            return msgspec.structs.replace(super().pooled(batch, place), pooled=None)

    class Varying(Pooling):
        def pooled(self, batch: list[CompletionRequest], place: int) -> Completion:
            answer = super().pooled(batch, place)
            return msgspec.structs.replace(answer, pooled=(*(answer.pooled or ()), (0.0, 0.0)) * (len(batch) > 1))

    for number, engine in enumerate((Empty(), Varying())):
        with pytest.raises(OracleError, match="vectors"):
            calibrated(engine, tmp_path / f"{number}")


def test_the_rule_of_an_earlier_run_has_its_tolerance(tmp_path: Path) -> None:
    """The tolerance is the measured one."""
    found, rule = calibrated(Pooling(lambda batch, _: 1e-3 * (len(batch) > 1)), tmp_path)
    sample = report_samples.results()
    write_results(msgspec.structs.replace(sample, calibration=found), tmp_path / "results.json")
    assert sample.engine is not None
    again = earlier_calibration(tmp_path / "results.json", cell="pooling", version=sample.engine.version)
    assert again is not None
    assert again[1] == rule
