"""Runs of single requirements on an engine with an injected fault."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coldproof.adapters.protocol.checked import AdapterError
from coldproof.adapters.spec.cell import Cell
from coldproof.harness.execution.engines import cell_engines
from coldproof.harness.execution.engines.pool import EnginePool
from coldproof.harness.execution.engines.standby import Standby
from coldproof.harness.judgement.requirement import Requirement
from coldproof.harness.judgement.trial import Trial
from coldproof.harness.options import PROFILES, Options, Profile
from coldproof.harness.proof.pipeline import ProofPipeline
from coldproof.harness.schema.case import Case
from coldproof.harness.schema.verdict import FailureClass, Verdict
from coldproof.harness.session.budget import TrialEnded
from coldproof.harness.session.causes.attributor import Attributor
from coldproof.harness.session.conductor import ConformanceRun, Role

WRONG = (FailureClass.STALE_STATE, FailureClass.CROSS_REQUEST, FailureClass.CORRUPT)
COUNTS = (FailureClass.ACCOUNTING,)


EXAMPLES = 12

LOST = (FailureClass.LOST_REUSE,)

ANY_HIT = (*WRONG, *COUNTS)  # a hit that is none may show in the answer or in the count


def requirement_of(test: Any) -> Requirement:
    """Return the requirement of a suite's test."""
    (found,) = [mark.args[0] for mark in test.pytestmark if mark.name == "requirement"]
    assert isinstance(found, Requirement)
    return found


PUSHED: dict[str, str] = {}  # requirement -> the fault that is injected for it on each push


def one_for_each_requirement(
    rows: Iterable[tuple[Any, ...]], *, test: Any = None, elsewhere: Collection[str] = ()
) -> list[Any]:
    """Return the rows as parameters. The first row of a requirement runs on each push, the others are nightly.

    So the cheapest fault stands first. `test`: the suite's test where the rows have none. `elsewhere`: requirements for
    which another file injects the fault of each push.
    """
    taken = set(elsewhere)
    parameters = []
    for row in rows:
        requirement = requirement_of(test or next(cell for cell in row if hasattr(cell, "pytestmark"))).id
        fault = next(cell for cell in row if isinstance(cell, str))
        nightly = requirement in taken
        if not nightly:
            PUSHED[requirement] = fault
        taken.add(requirement)
        marks = [pytest.mark.nightly] if nightly else []
        parameters.append(pytest.param(*row, id=f"{requirement}-{fault}", marks=marks))
    return parameters


class Bench:
    """One run whose engines start with an injected fault. They share one cold engine."""

    def __init__(
        self, folder: Path, *, worker: str = "model", diagnose: str = "none", engine: str = "vllm-inproc"
    ) -> None:
        self.options = Options(
            engine=engine,
            report_dir=folder,
            cells=("default", "tight"),
            budget="2h",  # the number of examples is what ends a trial here
            oracle="closed-form" if worker == "fingerprint" else "cold-engine",
            worker=worker,
            diagnose=diagnose,
            findings="off",  # what is found is that of the fault
        )
        self.run = ConformanceRun(self.options, Role.ALONE)
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.run.log.subscribe(lambda kind, fields: self.events.append((kind, fields)))
        self.run.begin()

    def verdict(
        self, test: Any, cell: Cell, *, examples: int, after_start: Callable[[], None] = lambda: None
    ) -> tuple[Verdict, str, list[Case]]:
        """Run one suite's test on a new engine. Return the verdict, its reason and the cases."""
        self.events.clear()
        self.run.trials.proofs.causes.clear()  # each fault is like a run of its own, whose first case gets controls
        drawn = settings(
            settings.get_profile("coldproof-smoke"), database=None, derandomize=True, max_examples=examples
        )(given(data=st.data())(test.hypothesis.inner_test))
        sut = self.run.open_cell(cell)
        assert sut is not None
        after_start()
        trial = Trial(requirement_of(test), cell.name, "", test.__name__)
        problem: BaseException | None = None
        try:
            self.run.trials.begin(sut, trial, drawn)(sut=sut)
        except TrialEnded:
            problem = trial.problem
        except Exception as failure:  # noqa: BLE001 - it becomes the trial's verdict
            problem = failure
        with contextlib.suppress(pytest.fail.Exception, AdapterError):
            self.run.trials.conclude(sut, trial, problem)
        self.run.close_cell(sut)
        (said,) = [fields for kind, fields in self.events if kind == "verdict"]
        return said["verdict"], said["reason"], [fields["case"] for kind, fields in self.events if kind == "case"]

    def violation(self, test: Any, cell: Cell, *, examples: int, fresh: bool = True, trials: int = 1) -> Case:
        """Return the only case of a test that an engine has to violate, confirmed on a fresh engine if `fresh`.

        `trials`: how many there may be, because one ends with a failure that was seen once and in no replay.
        """
        with pytest.MonkeyPatch.context() as patch:
            if not fresh:
                patch.setattr(Standby, "take", lambda *_, **__: (None, ""))
            for _ in range(trials):
                verdict, reason, cases = self.verdict(test, cell, examples=examples)
                if verdict is not Verdict.INCONCLUSIVE:
                    break
        assert verdict is Verdict.VIOLATED, reason
        (case,) = cases
        assert not fresh or case.reproduction.fresh_failed, f"{reason} {case.reproduction}"
        return case


@contextlib.contextmanager
def open_bench(
    folder: Path, worker: str = "model", *, diagnose: str = "none", engine: str = "vllm-inproc", replays: int = 1
) -> Iterator[Bench]:
    """Yield a run with short minimisation and few replays: the tests check that a bug is found, not how small its
    case is.
    """
    patch = pytest.MonkeyPatch()
    quick = Profile(
        examples=EXAMPLES,
        seconds=120,
        tokens=6_000,
        shrink_seconds=1,
        replays=3 if diagnose != "none" else replays,
        fingerprint_examples=EXAMPLES,
        fingerprint_seconds=120,
        controls_seconds=120,
    )
    patch.setitem(PROFILES, "smoke", quick)
    patch.setattr(EnginePool, "has_room", lambda _: False)  # no engine is started ahead of its need
    patch.setattr(cell_engines, "rule_after_second_calibration", lambda *_: None)  # half a minute; a fault is no noise
    patch.setattr(Attributor, "attribution", lambda *_, **__: None)  # replays with repairs; a fault is no known finding
    if diagnose == "none":  # controls want a small case; what was found and confirmed is enough without them
        patch.setattr(ProofPipeline, "minimise_on_fresh", lambda _, __, confirmed, *___: confirmed)
    if engine == "vllm":  # a server runs one workload in the second for minimising, and waits 20 s for one that hangs
        patch.setattr(ProofPipeline, "minimise", lambda _, found: found.smallest)
    bench = Bench(folder, worker=worker, diagnose=diagnose, engine=engine)
    yield bench
    bench.run.close(interrupted=False)
    patch.undo()
