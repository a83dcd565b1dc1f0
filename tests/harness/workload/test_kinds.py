"""A kind of step is complete: found by its file, part of a workload, described, and stable in case files."""

from __future__ import annotations

import importlib
import pkgutil
from typing import get_args

import msgspec
import pytest
from support.histories import ask, put

from coldproof.adapters.protocol.lost_files import Loss
from coldproof.adapters.protocol.resets import ResetScope
from coldproof.adapters.protocol.sides import Side
from coldproof.adapters.protocol.weights import PauseMode, SleepPart, WeightRoute
from coldproof.harness import feature_files
from coldproof.harness.features.lost_files.steps import LoseFiles
from coldproof.harness.features.sessions.steps import CloseSession
from coldproof.harness.workload import kinds
from coldproof.harness.workload.kinds.kind import Activity, State, StepKind, Stop
from coldproof.harness.workload.steps import (
    Action,
    Burst,
    Idle,
    Meanwhile,
    Pause,
    Reset,
    Restart,
    RestartSide,
    RestoreState,
    Resume,
    Route,
    SaveState,
    SetAdapter,
    Sleep,
    Step,
    Unload,
    UpdateWeights,
    Wake,
    Workload,
)
from coldproof.harness.workload.validity import is_valid

# One of each kind, as it stands in a case file.
WRITTEN: list[tuple[Action, str]] = [
    (
        SetAdapter(name="n", content="A", path="p", route=Route.IN_PLACE),
        '{"type":"set_adapter","name":"n","content":"A","path":"p","route":"in-place reload"}',
    ),
    (Unload("n"), '{"type":"unload","name":"n"}'),
    (Reset(), '{"type":"reset"}'),
    (
        Reset((ResetScope.RUNNING,), prefix=False),
        '{"type":"reset","scope":["running requests"],"prefix":false}',
    ),
    (SaveState("s"), '{"type":"save_state","name":"s"}'),
    (RestoreState("s"), '{"type":"restore_state","name":"s"}'),
    (Restart(), '{"type":"restart"}'),
    (RestartSide(Side.DECODE), '{"type":"restart_side","side":"decode"}'),
    (Idle(5), '{"type":"idle","ms":5}'),
    (CloseSession("s"), '{"type":"close_session","name":"s"}'),
    (LoseFiles(Loss.CUT), '{"type":"lose_files","loss":"cut in half"}'),
    (UpdateWeights(version="A"), f'{{"type":"update_weights","version":"A","route":"{WeightRoute.PATH.value}"}}'),
    (Pause(mode=PauseMode.KEEP, clear=True), f'{{"type":"pause","mode":"{PauseMode.KEEP.value}","clear":true}}'),
    (Resume(), '{"type":"resume"}'),
    (Sleep(2), '{"type":"sleep","level":2}'),
    (Wake(), '{"type":"wake"}'),
    (Wake(SleepPart.KV), f'{{"type":"wake","part":"{SleepPart.KV.value}"}}'),
]
READY = State(loaded=frozenset({"n"}), saved=frozenset({"s"}), turns={"s": 0})


def test_every_kind_of_the_folder_is_a_step_of_workloads() -> None:
    """A class that is missing in the union could be written to a case file, and not read again."""
    for file in pkgutil.iter_modules(kinds.__path__, f"{kinds.__name__}."):
        importlib.import_module(file.name)
    feature_files.load("steps")
    places = (kinds.__name__, feature_files.FEATURES)
    found = {kind for kind in StepKind.__subclasses__() if kind.__module__.startswith(places)}
    assert found == set(get_args(Action)) == {type(step) for step, _ in WRITTEN}
    assert set(get_args(Step)) == {Burst, *get_args(Action)}


@pytest.mark.parametrize(("step", "written"), WRITTEN)
def test_a_kind_is_written_and_read_as_before(step: Action, written: str) -> None:
    """Stored cases depend on tags, on field names, and on which defaults are omitted."""
    raw = msgspec.json.encode(step)
    assert raw.decode() == written
    assert msgspec.json.decode(raw, type=Step) == step


@pytest.mark.parametrize("kind", get_args(Action))
def test_every_kind_describes_itself(kind: type[StepKind]) -> None:
    """The text of the base class is an error."""
    assert kind.describe is not StepKind.describe
    with pytest.raises(NotImplementedError, match="StepKind has no description"):
        StepKind().describe()


@pytest.mark.parametrize(
    ("step", "during"),
    [
        (SetAdapter(name="n", content="A", path="p"), True),  # between bursts, an engine refuses this load
        (SetAdapter(name="other", content="A", path="p"), False),
        (Reset(()), True),
        (Reset((), prefix=False), False),
        (Resume(), False),
    ],
)
def test_a_change_during_a_burst(step: SetAdapter | Reset | Resume, during: bool) -> None:
    """Only a loaded name is changed; all other kinds are possible or not, as between bursts."""
    assert (step.during(READY) is not None) is during
    changed = Burst(requests=(ask(),), meanwhile=Meanwhile(change=step, after_tokens=1))
    assert is_valid(Workload((put("A", name="n"), changed))) is during


@pytest.mark.parametrize(
    ("step", "after"),
    [
        (Unload("n"), State(saved=READY.saved, turns=READY.turns)),
        (Unload("other"), None),
        (Restart(), State(saved=READY.saved, turns=READY.turns)),
        (RestoreState("s"), READY),
        (RestoreState("other"), None),
        (CloseSession("other"), None),
        (Idle(-1), None),
        (Resume(), None),
        (Wake(), None),
        (Pause(mode=PauseMode.KEEP, clear=False), msgspec.structs.replace(READY, activity=Activity(Stop.PAUSE))),
    ],
)
def test_the_state_after_a_step(step: Action, after: State | None) -> None:
    """None where the step is impossible."""
    assert step.after(READY) == after
    assert READY.open_sessions == {"s"}


def test_a_room_goes_through_steps_without_a_look_at_their_classes() -> None:
    """Only a burst has requests; its changes are those during it, and a kind is itself the change."""
    changed = Burst(requests=(ask(),), meanwhile=Meanwhile(change=Reset(), after_tokens=1, then=(Resume(),)))
    steps: list[Step] = [Idle(5), Burst(requests=(ask(), ask())), changed]
    assert [len(step.requests) for step in steps] == [0, 2, 1]
    assert [step.changes for step in steps] == [(Idle(5),), (), (Reset(), Resume())]
    assert [step.meanwhile is not None for step in steps] == [False, False, True]
