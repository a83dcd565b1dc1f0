"""The runner takes the steps that an engine records, with the numbers and times of the run."""

from __future__ import annotations

from pathlib import Path

from support.histories import ask, burst, contents

from coldproof.adapters.protocol.engine import EngineDied
from coldproof.adapters.protocol.engine_steps import Admission, Chunk, EngineStep
from coldproof.harness.execution.runner.runner import WorkloadRun
from coldproof.harness.history.records import History
from coldproof.harness.session.selftest.scripted_engine import ScriptedEngine
from coldproof.harness.workload.steps import Workload


class Recording(ScriptedEngine):
    """An engine that returns given steps, one group per call."""

    def __init__(self, *taken: tuple[EngineStep, ...] | None) -> None:
        super().__init__()
        self.taken = list(taken)

    def take_steps(self) -> tuple[EngineStep, ...] | None:
        """Return the next steps, or end the engine when there are none left."""
        if not self.taken:
            raise EngineDied("the scripted engine has terminated")
        return self.taken.pop(0)


def run(engine: ScriptedEngine, folder: Path) -> History:
    """Run two requests under the nonce `n`."""
    workload = Workload((burst(ask()), burst(ask())))
    return WorkloadRun(engine, workload, "n", contents(folder), folder / "run").history()


def test_steps_get_the_numbers_of_the_history(tmp_path: Path) -> None:
    """Steps before the run and requests of others are removed."""
    before = EngineStep(at=0.0, admitted=(Admission("00000001n.0.", 0),))
    during = EngineStep(
        at=1e9,
        admitted=(Admission("00000002n.0.", 0), Admission("00000003other", 0), Admission("00000004n.1.-8f", 16)),
        chunks=(Chunk("00000002n.0.", 0, 40, 40), Chunk("00000003other", 0, 8, 8)),
        waiting=2,
    )
    history = run(Recording((before,), (during,)), tmp_path)
    assert history.engine_steps is not None
    (step,) = history.engine_steps
    assert step.admitted == (Admission("0", 0), Admission("1", 16))
    assert step.chunks == (Chunk("0", 0, 40, 40),)
    assert step.waiting == 2
    assert 0 < step.at < 1e9  # seconds since the run began


def test_an_engine_that_records_nothing_is_not_one_that_did_nothing(tmp_path: Path) -> None:
    """None means unknown."""
    assert run(ScriptedEngine(), tmp_path / "a").engine_steps is None
    assert run(Recording(None), tmp_path / "b").engine_steps is None
    assert run(Recording((), ()), tmp_path / "c").engine_steps == ()


def test_steps_of_an_engine_that_was_lost_are_left_out(tmp_path: Path) -> None:
    """The history is complete without them."""
    history = run(Recording(()), tmp_path)
    assert history.engine_steps == ()
    assert history.engine_lost is None
