"""The controls of a planted bug lead to a conclusion that names its kind, and never to more than they show.

Bugs are planted in the scripted engine; the same is asked of real vLLM in test_diagnosis_of_vllm.py.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from adapters.base import EngineStartError, Surface
from adapters.checked import CheckedEngine
from harness.cells import CELLS
from harness.checkers.finding import Rule
from harness.confirm import Confirmed
from harness.diagnosis.controls import in_the_workload
from harness.diagnosis.diagnose import NO_TIME, Patience, diagnose
from harness.judge import Judgement, judge
from harness.runner import Run
from harness.scripted import ClosedFormOracle, Plant, ScriptedEngine
from harness.variant import CACHING, Variant
from harness.workload import Burst, Request, Reset, Route, Segment, SetAdapter, Step, Workload
from reports.schema import ControlRow, Diagnosis, Reproduction, Strength
from tests.histories import ask, burst, contents, put

RED = ask(salt="red")
NEAR = ask(("stem", 40))


def edited(request: Request, changed: int) -> Request:
    """The same prompt with one token changed."""
    segment = Segment("stem", 40, changed=changed)
    return msgspec.structs.replace(request, prompt=msgspec.structs.replace(request.prompt, segments=(segment,)))


class Lab:
    """Runs and judges on scripted engines, and has a new one for each control."""

    def __init__(self, plant: Plant, folder: Path) -> None:
        self.plant, self.contents, self.folder = plant, contents(folder), folder
        self.asked: list[Workload] = []
        self.variants: list[str] = []

    def observe(self, engine: CheckedEngine, workload: Workload, nonce: str | None = None) -> Judgement:
        """One run on a scripted engine."""
        self.asked.append(workload)
        nonce = nonce or secrets.token_hex(3)
        run = Run(cast(Any, engine), workload, nonce, self.contents, self.folder / nonce, settle_seconds=0.0)
        return judge(run.history(), ClosedFormOracle(), Rule(exact=True), exclusive=True)

    def next(self) -> CheckedEngine:
        """A fresh engine."""
        return cast(CheckedEngine, ScriptedEngine(self.plant))

    def variant(self, variant: Variant) -> CheckedEngine:
        """It has no other configurations."""
        self.variants.append(variant.name)
        raise EngineStartError("no such engine\nbut much more to say")

    def confirmed(self, *steps: Step, replays: int = 3) -> Confirmed:
        """A case of these steps, replayed, and with caching off."""
        workload = Workload(steps)
        again = [self.observe(self.next(), workload) for _ in range(replays)]
        off = [self.observe(cast(CheckedEngine, ScriptedEngine(self.plant, caching=False)), workload)]
        return Confirmed(
            judgement=next(one for one in again if one.findings),
            failure_class=next(one for one in again if one.findings).worst().failure_class,
            reproduction=Reproduction(while_shrinking_failed=1, while_shrinking_tries=1),
            history_dependent=False,
            again=tuple(again),
            off=tuple(off * replays),
        )

    def diagnosis(self, *steps: Step, seconds: float = 60.0, variants: tuple[Variant, ...] = ()) -> Diagnosis:
        """What the controls say of these steps."""
        confirmed = self.confirmed(*steps)
        judgement = confirmed.judgement
        controls = in_the_workload(judgement.history.workload, judgement.worst().request, salts=True)
        return diagnose(
            confirmed,
            controls=controls,
            variants=variants,
            engines=self,
            observe=self.observe,
            seconds=seconds,
        )


BUGS: dict[Plant, tuple[tuple[Step, ...], str]] = {
    Plant.NAME_ONLY_KEY: (
        (put("A"), burst(ask(adapter="tenant")), put("B", route=Route.IN_PLACE), burst(ask(adapter="tenant"))),
        "a cache key that knows adapters by their names",
    ),
    Plant.NO_ADAPTER_KEY: (
        (put("A"), burst(ask()), burst(ask(adapter="tenant"))),
        "a cache key without the adapter, or of another one",
    ),
    Plant.SALT_DROPPED: ((burst(ask()), burst(RED)), "a cache key without the salt"),
    Plant.LAST_TOKEN_UNHASHED: (
        (burst(ask()), burst(edited(ask(), 35))),
        "a cache key that misses some of the tokens",
    ),
    Plant.GARBLED_BLOCK: ((burst(ask()), burst(ask())), "a block that holds other KV than its key says"),
    Plant.STALE_WEIGHTS: (
        (put("A"), put("B", route=Route.IN_PLACE), burst(ask(adapter="tenant"))),
        "weights or state that outlive their time, not the prefix cache",
    ),
    Plant.RESET_LIES: ((burst(ask()), Reset(), burst(ask())), "a reset that leaves something behind"),
    Plant.OVERCOUNT: ((burst(ask()), burst(ask())), "how hits are found or counted, not what they hold"),
    Plant.NEVER_HITS: ((burst(ask()), burst(ask())), "how hits are found or counted, not what they hold"),
    Plant.SCORES_CUT: (
        (burst(ask()), burst(ask(surface=Surface(prompt_logprobs=True)))),
        "how more than plain requests are served on a hit",
    ),
}


@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.name)
def test_the_conclusion_names_the_kind_of_bug(plant: Plant, tmp_path: Path) -> None:
    """And says how often it came."""
    steps, kind = BUGS[plant]
    made = Lab(plant, tmp_path).diagnosis(*steps)
    assert made.mechanism == kind, made.conclusion
    assert kind in made.conclusion
    assert "came in 3 of 3 runs" in made.conclusion


def told(made: Diagnosis) -> dict[str, Strength]:
    """What each control tells, by its name."""
    return {row.name: row.tells for row in made.controls}


def test_the_table_of_the_best_report_of_the_field(tmp_path: Path) -> None:
    """vllm#42125: no caching, a fresh salt, another first block, B cold, a unique name; not the order or the route."""
    made = Lab(Plant.NAME_ONLY_KEY, tmp_path).diagnosis(*BUGS[Plant.NAME_ONLY_KEY][0])
    assert told(made) == {
        "prefix caching off": Strength.NEEDED,
        "a fresh salt on the failing request": Strength.NEEDED,
        "another first block in the failing request": Strength.NEEDED,
        "the failing request alone": Strength.NEEDED,
        "a name of its own for each adapter load": Strength.NEEDED,
        "the two adapters in each other's place": Strength.NOT_NEEDED,
        "the other route of a reload": Strength.NOT_NEEDED,
        "8 of each request at once": Strength.NOT_NEEDED,
        "the base model only": Strength.NEEDED,
    }
    rows = {row.name: row for row in made.controls}
    alone, swapped = rows["the failing request alone"], rows["the two adapters in each other's place"]
    assert (alone.failed, alone.tries, alone.cached_tokens) == (0, 3, 0)
    assert alone.observed == alone.cold
    assert (swapped.failed, swapped.cached_tokens) == (3, 40)
    assert swapped.observed != swapped.cold


def test_what_was_not_run_tells_nothing_and_says_why(tmp_path: Path) -> None:
    """An engine that does not start, or no time: both stand in the table, and in the conclusion as not told."""
    lab = Lab(Plant.GARBLED_BLOCK, tmp_path)
    tier = Variant(name="no second tier", removes="the second tier", cell=CELLS["default"])
    made = lab.diagnosis(burst(ask()), burst(ask()), variants=(tier,))
    (row,) = [row for row in made.controls if row.name == "no second tier"]
    assert (row.not_run, row.tries, row.tells) == ("no such engine", 0, Strength.NOT_TOLD)
    assert "Not told: the second tier." in made.conclusion
    late = lab.diagnosis(burst(ask()), burst(ask()), seconds=-1.0, variants=(tier,))
    assert {row.not_run for row in late.controls if row.removes != CACHING} == {NO_TIME}
    assert late.mechanism == ""
    assert "No kind of fault is singled out" in late.conclusion


def rows_of(workload: Workload) -> Iterator[Request]:
    """Its requests."""
    return (request for _, _, request in workload.requests())


STORY = Workload(
    (
        put("A", path="p"),
        Burst(requests=(ask(adapter="tenant", salt="red"), ask(("other", 9), priority=-3))),
        SetAdapter(name="tenant", content="B", path="p", route=Route.UNLOAD_LOAD),
        Reset(),
        burst(edited(ask(adapter="tenant", salt="Red"), 3)),
    )
)


def test_each_control_changes_one_thing() -> None:
    """And is left out where it would change nothing."""
    made = {control.name: control for control in in_the_workload(STORY, 2, salts=True)}
    assert set(made) == {
        "a fresh salt on the failing request",
        "another first block in the failing request",
        "the failing request alone",
        "a name of its own for each adapter load",
        "a path of its own for each adapter",
        "the two adapters in each other's place",
        "the other route of a reload",
        "one request at a time",
        "no cache reset",
        "the base model only",
        "no salts",
        "salts that have nothing in common",
        "prompts that have no token in common where they differ",
        "equal priorities",
    }
    assert [r.salt for r in rows_of(made["a fresh salt on the failing request"].workload)] == ["red", None, "control"]
    assert [r.adapter for r in rows_of(made["a name of its own for each adapter load"].workload)] == [
        "tenant",
        None,
        "tenant 2",
    ]
    alone = made["the failing request alone"]
    assert alone.workload.steps[0] == put("B", path="p")
    assert alone.request == 0
    assert len(alone.workload.steps) == 2
    paths = [s.path for s in made["a path of its own for each adapter"].workload.steps if isinstance(s, SetAdapter)]
    assert paths == ["p of A", "p of B"]
    serial = made["one request at a time"].workload
    assert [len(s.requests) for s in serial.steps if isinstance(s, Burst)] == [1, 1, 1]
    assert not any(isinstance(step, Reset) for step in made["no cache reset"].workload.steps)
    routes = [s.route for s in made["the other route of a reload"].workload.steps if isinstance(s, SetAdapter)]
    assert routes == [Route.LOAD, Route.IN_PLACE]
    assert not any(r.adapter for r in rows_of(made["the base model only"].workload))


def test_a_serial_story_is_also_told_by_crowds() -> None:
    """Eight of each, the failing one still to be found and its earlier turn the first of its crowd."""
    story = Workload((burst(ask()), Reset(), burst(ask(("more", 9), continues=0, salt="red"))))
    made = {control.name: control for control in in_the_workload(story, 1, salts=True)}["8 of each request at once"]
    assert [len(s.requests) for s in made.workload.steps if isinstance(s, Burst)] == [8, 8]
    asked = list(rows_of(made.workload))
    assert made.request == 8
    assert asked[8].salt == "red"
    assert {r.prompt.continues for r in asked[8:]} == {0}


def test_an_engine_without_salts_is_given_none() -> None:
    """It would refuse them."""
    names = [control.name for control in in_the_workload(STORY, 2, salts=False)]
    assert "a fresh salt on the failing request" not in names


def test_controls_of_nobody_in_particular_are_about_the_workload() -> None:
    """A stall or a leak has no failing request: nothing can be changed about that one."""
    names = [control.name for control in in_the_workload(STORY, None, salts=True)]
    assert names[0] == "a name of its own for each adapter load"


def test_a_row_round_trips() -> None:
    """Rows are part of the case file."""
    row = ControlRow(name="n", removes="r", tries=3, failed=1, observed=[1], cold=[2], cached_tokens=0)
    assert msgspec.json.decode(msgspec.json.encode(row), type=ControlRow) == row


def test_waiting_for_an_engine_is_not_counted_up_to_as_long_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start of a minute leaves the controls their seconds; one without end does not keep them for ever."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    patience = Patience(10)
    with patience.waiting():
        clock[0] += 8
    clock[0] += 9
    assert not patience.is_over()
    with patience.waiting():
        clock[0] += 100
    assert patience.is_over()
