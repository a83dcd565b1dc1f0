"""The controls of an injected bug lead to a conclusion that names its kind, and never to more than they show.

Bugs are injected into the scripted engine. test_diagnosis_of_vllm.py has the same checks for real vLLM.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from support.histories import ask, burst, contents, put

from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.protocol.engine import EngineStartError
from coldproof.adapters.protocol.requests import ResponseOptions
from coldproof.adapters.protocol.sides import Side
from coldproof.adapters.registry import CELLS
from coldproof.adapters.spec.cell import CACHING, EngineVariant
from coldproof.harness.execution.runner.runner import WorkloadRun
from coldproof.harness.judgement.finding import Rule
from coldproof.harness.judgement.judge import Judgement, judge
from coldproof.harness.proof.confirm.confirm import Confirmed
from coldproof.harness.proof.diagnose.controls import controls_of
from coldproof.harness.proof.diagnose.diagnose import NO_TIME, TimeLimit, diagnose
from coldproof.harness.schema.case import Diagnosis, Reproduction, Strength
from coldproof.harness.session.selftest.scripted_engine import ClosedFormOracle, InjectedBug, ScriptedEngine
from coldproof.harness.workload.steps import (
    Burst,
    Meanwhile,
    Request,
    Reset,
    Route,
    Segment,
    SetAdapter,
    Step,
    Workload,
)

RED = ask(salt="red")
NEAR = ask(("stem", 40))


def edited(request: Request, changed: int) -> Request:
    """Return the same prompt with one token changed."""
    segment = Segment("stem", 40, changed=changed)
    return msgspec.structs.replace(request, prompt=msgspec.structs.replace(request.prompt, segments=(segment,)))


class ScriptedControls:
    """Runs and judges workloads on scripted engines, and has a new engine for each control."""

    def __init__(self, bug: InjectedBug, folder: Path) -> None:
        self.bug, self.contents, self.folder = bug, contents(folder), folder
        self.observed_workloads: list[Workload] = []
        self.variants: list[str] = []

    def observe(self, engine: CheckedEngine, workload: Workload, nonce: str | None = None) -> Judgement:
        """Run and judge a workload on a scripted engine."""
        self.observed_workloads.append(workload)
        nonce = nonce or secrets.token_hex(3)
        run = WorkloadRun(cast(Any, engine), workload, nonce, self.contents, self.folder / nonce, settle_seconds=0.0)
        return judge(run.history(), ClosedFormOracle(), Rule(exact=True), exclusive=True)

    def next(self) -> CheckedEngine:
        """Return a fresh engine."""
        return cast(CheckedEngine, ScriptedEngine(self.bug))

    def variant(self, variant: EngineVariant) -> CheckedEngine:
        """Raise an error: there are no other configurations."""
        self.variants.append(variant.name)
        raise EngineStartError("no such engine\nbut much more to say")

    def confirmed(self, *steps: Step, replays: int = 3) -> Confirmed:
        """Return a confirmed case of these steps, with replays and with runs without caching."""
        workload = Workload(steps)
        again = [self.observe(self.next(), workload) for _ in range(replays)]
        off = [self.observe(cast(CheckedEngine, ScriptedEngine(self.bug, caching=False)), workload)]
        return Confirmed(
            judgement=next(one for one in again if one.findings),
            failure_class=next(one for one in again if one.findings).worst().failure_class,
            reproduction=Reproduction(while_shrinking_failed=1, while_shrinking_tries=1),
            history_dependent=False,
            replays=tuple(again),
            caching_off=tuple(off * replays),
        )

    def diagnosis(self, *steps: Step, seconds: float = 60.0, variants: tuple[EngineVariant, ...] = ()) -> Diagnosis:
        """Return the diagnosis of a case of these steps."""
        confirmed = self.confirmed(*steps)
        judgement = confirmed.judgement
        controls = controls_of(judgement.history.workload, judgement.worst().request, salts=True)
        return diagnose(
            confirmed,
            controls=controls,
            variants=variants,
            engines=self,
            observe=self.observe,
            seconds=seconds,
        )


BUGS: dict[InjectedBug, tuple[tuple[Step, ...], str]] = {
    InjectedBug.NAME_ONLY_KEY: (
        (put("A"), burst(ask(adapter="tenant")), put("B", route=Route.IN_PLACE), burst(ask(adapter="tenant"))),
        "a cache key that identifies adapters by name",
    ),
    InjectedBug.NO_ADAPTER_KEY: (
        (put("A"), burst(ask()), burst(ask(adapter="tenant"))),
        "a cache key without the adapter, or with another one",
    ),
    InjectedBug.SALT_DROPPED: ((burst(ask()), burst(RED)), "a cache key without the salt"),
    InjectedBug.LAST_TOKEN_UNHASHED: (
        (burst(ask()), burst(edited(ask(), 35))),
        "a cache key that omits some of the tokens",
    ),
    InjectedBug.GARBLED_BLOCK: ((burst(ask()), burst(ask())), "a block whose content does not match its key"),
    InjectedBug.STALE_WEIGHTS: (
        (put("A"), put("B", route=Route.IN_PLACE), burst(ask(adapter="tenant"))),
        "stale model weights or state outside of the prefix cache",
    ),
    InjectedBug.RESET_LIES: ((burst(ask()), Reset(), burst(ask())), "a cache reset that is incomplete"),
    InjectedBug.OVERCOUNT: (
        (burst(ask()), burst(ask())),
        "the lookup or count of hits, not the block content",
    ),
    InjectedBug.NEVER_HITS: (
        (burst(ask()), burst(ask())),
        "the lookup or count of hits, not the block content",
    ),
    InjectedBug.SCORES_CUT: (
        (burst(ask()), burst(ask(options=ResponseOptions(prompt_logprobs=True)))),
        "the handling of response options on a cache hit",
    ),
}


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_conclusion_names_the_kind_of_bug(bug: InjectedBug, tmp_path: Path) -> None:
    """The conclusion also has the number of runs in which the failure occurred."""
    steps, kind = BUGS[bug]
    made = ScriptedControls(bug, tmp_path).diagnosis(*steps)
    assert made.mechanism == kind, made.conclusion
    assert kind in made.conclusion
    assert "occurred in 3 of 3 unmodified runs" in made.conclusion


def test_the_controls_reproduce_a_published_table(tmp_path: Path) -> None:
    """The controls reproduce the table of vllm#42125.

    The bug needs caching, the same salt, the same first block, the earlier requests and the reused name. It does not
    need the order of the adapters or the route.
    """
    made = ScriptedControls(InjectedBug.NAME_ONLY_KEY, tmp_path).diagnosis(*BUGS[InjectedBug.NAME_ONLY_KEY][0])
    assert {row.name: row.tells for row in made.controls} == {
        "prefix caching off": Strength.NEEDED,
        "a fresh salt on the failing request": Strength.NEEDED,
        "another first block in the failing request": Strength.NEEDED,
        "the failing request alone": Strength.NEEDED,
        "a unique name for each adapter load": Strength.NEEDED,
        "the two adapters swapped": Strength.NOT_NEEDED,
        "the other route of a reload": Strength.NOT_NEEDED,
        "8 copies of each request at once": Strength.NOT_NEEDED,
        "the base model only": Strength.NEEDED,
    }
    rows = {row.name: row for row in made.controls}
    alone, swapped = rows["the failing request alone"], rows["the two adapters swapped"]
    assert (alone.failed, alone.tries, alone.cached_tokens) == (0, 3, 0)
    assert alone.observed == alone.cold
    assert (swapped.failed, swapped.cached_tokens) == (3, 40)
    assert swapped.observed != swapped.cold


def test_what_was_not_run_is_undetermined_and_has_a_reason(tmp_path: Path) -> None:
    """A control without an engine or time is in the table with its reason, and undetermined in the conclusion."""
    controls = ScriptedControls(InjectedBug.GARBLED_BLOCK, tmp_path)
    tier = EngineVariant(name="no second tier", removes="the second tier", cell=CELLS["default"])
    made = controls.diagnosis(burst(ask()), burst(ask()), variants=(tier,))
    (row,) = [row for row in made.controls if row.name == "no second tier"]
    assert (row.not_run, row.tries, row.tells) == ("no such engine", 0, Strength.UNDETERMINED)
    assert "Undetermined: the second tier." in made.conclusion
    late = controls.diagnosis(burst(ask()), burst(ask()), seconds=-1.0, variants=(tier,))
    assert {row.not_run for row in late.controls if row.removes != CACHING} == {NO_TIME}
    assert late.mechanism == ""
    assert "do not identify a single cause" in late.conclusion


def requests_of(workload: Workload) -> Iterator[Request]:
    """Return the requests of a workload."""
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
    """All else stays as it is."""
    made = {control.name: control for control in controls_of(STORY, 2, salts=True)}
    assert [r.salt for r in requests_of(made["a fresh salt on the failing request"].workload)] == [
        "red",
        None,
        "control",
    ]
    assert [r.adapter for r in requests_of(made["a unique name for each adapter load"].workload)] == [
        "tenant",
        None,
        "tenant 2",
    ]
    alone = made["the failing request alone"]
    assert alone.workload.steps[0] == put("B", path="p")
    assert alone.request == 0
    assert len(alone.workload.steps) == 2
    paths = [s.path for s in made["a unique path for each adapter"].workload.steps if isinstance(s, SetAdapter)]
    assert paths == ["p of A", "p of B"]
    serial = made["one request at a time"].workload
    assert [len(s.requests) for s in serial.steps if isinstance(s, Burst)] == [1, 1, 1]
    assert not any(isinstance(step, Reset) for step in made["no cache reset"].workload.steps)
    routes = [s.route for s in made["the other route of a reload"].workload.steps if isinstance(s, SetAdapter)]
    assert routes == [Route.LOAD, Route.IN_PLACE]
    assert not any(r.adapter for r in requests_of(made["the base model only"].workload))


def test_a_serial_workload_is_also_run_concurrently() -> None:
    """Eight copies of each request are sent.

    The control names the first copy of the failing request. Its copies continue the first copy of the earlier request.
    """
    story = Workload((burst(ask()), Reset(), burst(ask(("more", 9), continues=0, salt="red"))))
    made = {control.name: control for control in controls_of(story, 1, salts=True)}["8 copies of each request at once"]
    assert [len(s.requests) for s in made.workload.steps if isinstance(s, Burst)] == [8, 8]
    sent = list(requests_of(made.workload))
    assert made.request == 8
    assert sent[8].salt == "red"
    assert {r.prompt.continues for r in sent[8:]} == {0}


def test_a_change_of_one_side_first_is_also_made_on_both_at_once() -> None:
    """Nothing else in the workload differs."""
    half = Meanwhile(change=Reset(), after_tokens=0, gap_ms=300, first=Side.DECODE)
    story = Workload((Burst(requests=(ask(),), meanwhile=half), burst(ask())))
    made = {control.name: control for control in controls_of(story, 1, salts=True)}["each change on both sides at once"]
    at_once = Burst(requests=(ask(),), meanwhile=Meanwhile(change=Reset(), after_tokens=0))
    assert made.workload.steps == (at_once, burst(ask()))


def test_an_engine_without_salts_is_given_none() -> None:
    """The engine would refuse requests with salts."""
    names = [control.name for control in controls_of(STORY, 2, salts=False)]
    assert "a fresh salt on the failing request" not in names


def test_controls_without_a_failing_request_change_the_workload() -> None:
    """A stall or a leak has no failing request that a control could change."""
    names = [control.name for control in controls_of(STORY, None, salts=True)]
    assert names[0] == "a unique name for each adapter load"


def test_waiting_for_an_engine_extends_the_time_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start of a minute does not take the controls' time, but a start without end does not extend it for ever."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    patience = TimeLimit(10)
    with patience.waiting():
        clock[0] += 8
    clock[0] += 9
    assert not patience.is_over()
    with patience.waiting():
        clock[0] += 100
    assert patience.is_over()
