"""For each family of states there are histories that reach a cell, and similar ones that reach another or none."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from support.drawn_workloads import SLOW, limits
from support.histories import ask, burst, history, outcome, play, put, record, shape
from support.nightly import with_samples
from support.workload_families import FAMILIES

from coldproof.adapters.protocol.engine_steps import Admission, Chunk, EngineStep
from coldproof.adapters.protocol.metrics import Metrics
from coldproof.adapters.protocol.requests import Stage, Token
from coldproof.adapters.protocol.resets import ResetScope
from coldproof.adapters.protocol.weights import PauseMode, WeightRoute
from coldproof.harness.features.lora.states import LOAD, ROUTES
from coldproof.harness.features.weights.states import PAUSE, PAUSES, UPDATE, UPDATE_ROUTES
from coldproof.harness.history.records import (
    EngineAge,
    Identity,
    Outcome,
    PauseRecord,
    ResetRecord,
    WeightUpdate,
)
from coldproof.harness.judgement.reach.collect import reached, seen_by
from coldproof.harness.judgement.reach.model import CHANGES, LOOKUPS, SCHEDULING, SIZES, Needs
from coldproof.harness.judgement.reach.states import REGISTERED, absent, families, states
from coldproof.harness.session.selftest.scripted_engine import ScriptedEngine
from coldproof.harness.workload.steps import Burst, Meanwhile, Reset, Restart, Route, Workload

PROMPT = tuple(range(100, 140))  # two whole blocks of 16 and a half
BRANCH = (*PROMPT[:32], *range(500, 510))
OTHER = tuple(range(300, 340))
WHOLE = PROMPT[:32]
NEEDS_WEIGHTS = {"updates", "pauses", "weights"}  # words in names of families that need another version of the weights


def cells(
    *outcomes: Outcome, steps: tuple[EngineStep, ...] | None = None, steps_of: Any = None, **changes: Any
) -> dict[str, int]:
    """Return the cells that these requests reach.

    Without steps, each request is admitted alone when it is sent, with the hit that it reports.
    """
    alone = tuple(step(o.sent, admit(o.request, o.cached_tokens or 0)) for o in outcomes)
    changes = changes if steps_of is None else {**changes, "steps": steps_of}
    return reached(history(*outcomes, engine_steps=alone if steps is None else steps, **changes))


def step(at: float, *admitted: Admission, **changes: Any) -> EngineStep:
    """Return a step. The pool has room and no request waits."""
    return EngineStep(at=at, admitted=admitted, **{"free": 900, **changes})


def admit(number: int, hit: int = 0, *, resumed: bool = False) -> Admission:
    """Return the admission of a request."""
    return Admission(str(number), hit, resumed)


def chunk(number: int, start: int, end: int, target: int = 40) -> Chunk:
    """Return a chunk of a prefill."""
    return Chunk(str(number), start, end, target)


def hit(number: int, prompt: tuple[int, ...] = PROMPT, cached: int = 32, **changes: Any) -> Outcome:
    """Return a request that hit this many tokens."""
    return outcome(number, prompt, cached_tokens=cached, **changes)


def slow(
    number: int, prompt: tuple[int, ...] = PROMPT, *, until: float = 9.0, count: int = 8, **changes: Any
) -> Outcome:
    """Return a request that runs for long.

    It has a token each tenth of a second after the first half second.
    """
    answer = tuple(Token(id=7 + i, at=0.5 + i / 10) for i in range(count))
    return outcome(number, prompt, **{"tokens": answer, "finished": until, "max_tokens": count, **changes})


def lookup_cells() -> dict[str, tuple[dict[str, int], dict[str, int]]]:
    """Return cells of lookups, each with a history that reaches it and one that does not."""
    return {
        "lookup/none/inside": (cells(outcome(0, PROMPT)), cells(hit(0))),
        "lookup/part/inside": (cells(hit(0, cached=16)), cells(hit(0, cached=32))),
        "lookup/most/at": (cells(hit(0, WHOLE, 16)), cells(hit(0, WHOLE, 0))),
        "lookup/most/before": (cells(hit(0, PROMPT[:31], 16)), cells(hit(0, PROMPT[:30], 16))),
        "lookup/most/behind": (cells(hit(0, PROMPT[:33], 32)), cells(hit(0, PROMPT[:34], 32))),
        "writer/over/prompt": (cells(outcome(0, PROMPT), hit(1)), cells(outcome(0, OTHER), hit(1))),
        "writer/over/answer": (
            cells(outcome(0, WHOLE, tuple(range(20))), hit(1, (*WHOLE, *range(20), 7), 48)),
            cells(outcome(0, WHOLE, tuple(range(20))), hit(1, (*WHOLE, *range(20), 7), 32)),
        ),
        "writer/decode/prompt": (cells(slow(0), hit(1)), cells(slow(0, until=0.9), hit(1))),
        "writer/prefill/prompt": (cells(slow(0, sent=0.9), hit(1)), cells(slow(0), hit(1))),
        "writer/aborted/prompt": (
            cells(outcome(0, PROMPT, aborted=Stage.DECODE), hit(1)),
            cells(outcome(0, PROMPT), hit(1)),
        ),
        "writer/preempted/prompt": (
            cells(slow(0, preempted_at=(0.9,)), hit(1)),
            cells(slow(0, preempted_at=(1.2,)), hit(1)),
        ),
        "again/nothing/most": (cells(outcome(0, PROMPT), hit(1)), cells(outcome(0, OTHER), hit(1))),
        "again/reset/none": (
            cells(outcome(0, PROMPT), outcome(1, PROMPT), resets=(reset(0.7),)),
            cells(outcome(0, PROMPT), outcome(1, PROMPT), resets=(reset(0.7, success=False),)),
        ),
        "again/eviction/part": (
            cells(outcome(0, PROMPT), hit(1, cached=16), steps=(step(0), step(0.2, evicted=1), step(1, admit(1, 16)))),
            cells(outcome(0, PROMPT), hit(1, cached=16), steps=(step(0), step(1, admit(1, 16)))),
        ),
        "again/abort/none": (
            cells(outcome(0, PROMPT, aborted=Stage.PREFILL), outcome(1, PROMPT)),
            cells(outcome(0, PROMPT), outcome(1, PROMPT)),
        ),
        "again/preemption/most": (cells(slow(0, preempted_at=(0.6,)), hit(1)), cells(slow(0), hit(1))),
        "again/restart/most": (repeated_after(Restart()), repeated_after(Reset())),
        "again/load/most": (repeated_after(put("A")), repeated_after(Reset())),
        "again/update/none": (updated("start"), cells(outcome(0, PROMPT), outcome(1, PROMPT))),
        "conflict/content/nothing": (conflict("b"), conflict("a")),
        "conflict/base/nothing": (conflict(None), conflict("a")),
        "conflict/salt/more": (
            cells(outcome(0, PROMPT), outcome(1, PROMPT, salt="s"), outcome(2, PROMPT)),
            cells(outcome(0, PROMPT), outcome(1, PROMPT), outcome(2, PROMPT)),
        ),
        "conflict/salt/less": (
            cells(outcome(0, PROMPT[:20]), outcome(1, PROMPT, salt="s"), outcome(2, PROMPT)),
            cells(outcome(0, PROMPT), outcome(1, PROMPT, salt="s"), outcome(2, PROMPT)),
        ),
        "pair/equal/1": (pair(PROMPT, PROMPT, 0, 32), pair(PROMPT, BRANCH, 0, 32)),
        "pair/block/2": (pair(PROMPT, BRANCH, 16, 16), pair(PROMPT, BRANCH, 0, 16)),
        "pair/extends/0": (pair(WHOLE, PROMPT, 0, 0), pair(PROMPT, PROMPT, 0, 0)),
        "pair/other/0": (pair(PROMPT, PROMPT, 0, 0, salt="s"), pair(PROMPT, PROMPT, 0, 0)),
        "pair/apart/0": (pair(PROMPT, OTHER, 0, 0), pair(PROMPT, BRANCH, 0, 0)),
        "turn/most/inside": (turn(32), turn(16)),
        "turn/part/inside": (turn(16), turn(0)),
    }


def scheduler_cells() -> dict[str, tuple[dict[str, int], dict[str, int]]]:
    """Return cells of the scheduler."""
    cut = (step(0, admit(0), chunks=(chunk(0, 0, 16),)), step(0.1, chunks=(chunk(0, 16, 31),)))
    end = step(0.2, chunks=(chunk(0, 31, 40),))
    one = outcome(0, PROMPT)
    return {
        "chunk/first/at": (cells(one, steps=(*cut, end)), cells(one, steps=cut[1:])),
        "chunk/middle/before": (cells(one, steps=(*cut, end)), cells(one, steps=cut[:1])),
        "chunk/last/inside": (cells(one, steps=(*cut, end)), cells(one, steps=cut)),
        "chunk/whole/inside": (
            cells(one, steps=(step(0, admit(0), chunks=(chunk(0, 0, 40),)),)),
            cells(one, steps=cut),
        ),
        "beside/whole/both": (beside(decoding=1, others=1), beside(decoding=0, others=1)),
        "beside/whole/prefill": (beside(decoding=0, others=1), beside(decoding=0, others=0)),
        "beside/whole/decode": (beside(decoding=1, others=0), beside(decoding=0, others=0)),
        "admitted/2/alone": (admitted(2), admitted(1)),
        "admitted/8/alone": (admitted(8), admitted(7)),
        "admitted/1/resumed": (
            cells(one, outcome(1, OTHER), steps=(step(0, admit(0), admit(1, resumed=True)),)),
            cells(one, outcome(1, OTHER), steps=(step(0, admit(0), admit(1)),)),
        ),
        "admitted/1/decode": (cells(one, steps=(step(0, admit(0), decoding=2),)), admitted(1)),
        "running/2/one": (cells(slow(0), outcome(1, OTHER)), cells(slow(0, until=0.9), outcome(1, OTHER))),
        "running/2/salts": (cells(slow(0), outcome(1, OTHER, salt="s")), cells(slow(0), outcome(1, OTHER))),
        "running/2/base": (cells(slow(0), outcome(1, OTHER, adapter="a")), cells(slow(0), outcome(1, OTHER))),
        "pool/miss/alone": (cells(one), cells(hit(0))),
        "pool/hit/scarce": (pool(free=200), pool(free=300)),
        "pool/hit/full": (pool(free=1), pool(free=2)),
        "eviction/first/miss": (
            cells(one, steps=(step(0, admit(0), evicted=2, evicted_first=1),)),
            cells(one, steps=(step(0, admit(0), evicted=2),)),
        ),
        "eviction/later/decode": (
            cells(one, steps=(step(0.1, evicted=1, decoding=1),)),
            cells(one, steps=(step(0.1, evicted=1, chunks=(chunk(0, 0, 8),)),)),
        ),
        "queue/admission/1": (
            cells(slow(0), slow(1, OTHER, sent=0.0), steps=(step(0, admit(0)), step(3, admit(1)))),
            cells(slow(0), slow(1, OTHER, sent=0.1), steps=(step(0, admit(0)), step(3, admit(1)))),
        ),
        "queue/reset/0": (
            cells(one, resets=(reset(0.7),)),
            reached(history(one, resets=(reset(0.7),))),
        ),
        "preemption/prefill/1": (cells(slow(0, preempted_at=(0.2,))), cells(slow(0, preempted_at=(0.55,)))),
        "preemption/few/2": (cells(slow(0, preempted_at=(0.2, 0.75))), cells(slow(0, preempted_at=(0.75,)))),
        "resumption/few/most": (resumed(32), resumed(16)),
        "resumption/few/none": (resumed(0), resumed(16)),
        "priority/negative/overtakes": (priorities(-1), priorities(0)),
        "priority/zero/overtaken": (priorities(-1), priorities(0)),
        "sharers/hit/1": (cells(slow(0), hit(1)), cells(slow(0, OTHER), hit(1))),
        "sharers/end/1": (cells(slow(0), hit(1, finished=2.0)), cells(slow(0, OTHER), hit(1, finished=2.0))),
        "sharers/abort/0": (cells(outcome(0, PROMPT, aborted=Stage.DECODE)), cells(one)),
        "sharers/preemption/1": (
            cells(slow(0), slow(1, BRANCH, preempted_at=(0.6,))),
            cells(slow(0), slow(1, OTHER, preempted_at=(0.6,))),
        ),
    }


def change_cells() -> dict[str, tuple[dict[str, int], dict[str, int]]]:
    """Return cells of changes to an engine."""
    aborted: dict[str, Any] = {"aborted": Stage.DECODE, "max_tokens": 9}
    return {
        "abort/last/never": (cells(slow(0, **aborted)), cells(slow(0, **{**aborted, "max_tokens": 10}))),
        "abort/middle/hit": (
            cells(slow(0, until=0.9, aborted=Stage.DECODE), hit(1)),
            cells(slow(0, until=0.9), hit(1)),
        ),
        "abort/first/none": (
            cells(slow(0, count=1, until=0.9, **aborted), outcome(1, PROMPT)),
            cells(slow(0, count=2, until=0.9, **aborted), outcome(1, PROMPT)),
        ),
        "abort/new/never": (cells(disconnected(), steps=()), cells(disconnected())),
        "abort/first-chunk/never": (cells(disconnected()), cells(disconnected(), steps=())),
        "abort/later-chunk/never": (
            cells(
                disconnected(),
                steps=(step(0, admit(0), chunks=(chunk(0, 0, 8),)), step(0.1, chunks=(chunk(0, 8, 16),))),
            ),
            cells(disconnected()),
        ),
        "abort/preempted/never": (cells(slow(0, preempted_at=(0.7,), **aborted)), cells(slow(0, **aborted))),
        "reset/idle/done": (cells(outcome(0, PROMPT), resets=(reset(0.7),)), cells(slow(0), resets=(reset(0.7),))),
        "reset/decode/refused": (
            cells(slow(0), resets=(reset(0.7, success=False),)),
            cells(slow(0), resets=(reset(0.7),)),
        ),
        "reset/prefill/running": (
            cells(slow(0), resets=(reset(0.2, scope=(ResetScope.RUNNING,)),)),
            cells(slow(0), resets=(reset(0.7, scope=(ResetScope.RUNNING,)),)),
        ),
        "load/load/idle": (loaded(put("A")), loaded(put("A", route=Route.IN_PLACE))),
        "load/in-place/others": (loaded_under_traffic("other"), loaded_under_traffic("tenant")),
        "load/in-place/same": (loaded_under_traffic("tenant"), loaded_under_traffic("other")),
        "reload/in-place/same": (
            loaded(put("A", path="p"), put("B", path="p", route=Route.IN_PLACE)),
            loaded(put("A", path="p"), put("B", path="q", route=Route.IN_PLACE)),
        ),
        "reload/in-place/back": (
            loaded(put("A"), put("B", route=Route.IN_PLACE), put("A", route=Route.IN_PLACE)),
            loaded(put("A"), put("B", route=Route.IN_PLACE)),
        ),
        "update/path/running": (updated("v", during=True), updated("v")),
        "update/path/paused": (updated("v", during=True, paused=True), updated("v", during=True)),
        "pause/keep/kept": (updated("v", paused=True), updated("v")),
        "tier/load/reset": (loads_of_tier(Reset()), loads_of_tier(put("A"))),
        "tier/failed/eviction": (loads_of_tier(put("A"), failed=1), loads_of_tier(put("A"))),
    }


def size_cells() -> dict[str, tuple[dict[str, int], dict[str, int]]]:
    """Return cells of sizes and numbers."""
    changed = (*PROMPT[:20], 1, *PROMPT[21:])
    return {
        "length/1/new": (cells(outcome(0, PROMPT)), cells(outcome(0, PROMPT[:9]))),
        "length/0/new": (cells(outcome(0, PROMPT[:9])), cells(outcome(0, PROMPT))),
        "length/longest/new": (
            cells(outcome(0, PROMPT), shape=shape(max_model_tokens=42)),
            cells(outcome(0, PROMPT), shape=shape(max_model_tokens=80)),
        ),
        "length/1/equal": (cells(outcome(0, PROMPT), hit(1)), cells(outcome(0, PROMPT), hit(1, salt="s"))),
        "length/1/middle": (
            cells(outcome(0, PROMPT), outcome(1, changed)),
            cells(outcome(0, PROMPT), outcome(1, BRANCH)),
        ),
        "length/1/last": (
            cells(outcome(0, PROMPT), outcome(1, BRANCH)),
            cells(outcome(0, PROMPT), outcome(1, changed)),
        ),
        "length/1/first": (cells(outcome(0, PROMPT), outcome(1, OTHER)), cells(outcome(0, PROMPT), outcome(1, BRANCH))),
        "length/1/shorter": (
            cells(outcome(0, PROMPT), outcome(1, WHOLE)),
            cells(outcome(0, WHOLE), outcome(1, PROMPT)),
        ),
        "length/1/continues": (
            cells(outcome(0, WHOLE), outcome(1, PROMPT)),
            cells(outcome(0, PROMPT), outcome(1, WHOLE)),
        ),
        "answer/short/inside": (cells(outcome(0, PROMPT)), cells(outcome(0, PROMPT, (7,)))),
        "answer/1/inside": (cells(outcome(0, PROMPT, (7,))), cells(outcome(0, PROMPT, (7, 8)))),
        "answer/long/at": (
            cells(outcome(0, WHOLE, tuple(range(64)))),
            cells(outcome(0, WHOLE, tuple(range(48)))),
        ),
        "variety/salts/2": (
            cells(outcome(0, PROMPT, salt="s"), outcome(1, PROMPT, salt="t")),
            cells(outcome(0, PROMPT, salt="s"), outcome(1, PROMPT, salt="s")),
        ),
        "variety/names/1": (loaded(put("A"), put("B")), loaded(put("A"), put("B", name="other"))),
        "age/resets/3": (
            cells(outcome(0, PROMPT), resets=(reset(0.7),), age=EngineAge(resets=2)),
            cells(outcome(0, PROMPT), resets=(reset(0.7),), age=EngineAge(resets=1)),
        ),
        "age/requests/64": (
            cells(outcome(0, PROMPT), age=EngineAge(requests=63)),
            cells(outcome(0, PROMPT), age=EngineAge(requests=62)),
        ),
        "age/requests/2": (cells(outcome(0, PROMPT), outcome(1, PROMPT)), cells(outcome(0, PROMPT))),
    }


def reset(began: float, *, success: bool = True, scope: tuple[ResetScope, ...] = ()) -> ResetRecord:
    """Return a reset."""
    return ResetRecord(began=began, ended=began + 0.01, success=success, scope=scope)


def disconnected() -> Outcome:
    """Return a request whose client disconnected before the first token."""
    return outcome(0, PROMPT, (), aborted=Stage.PREFILL)


def pair(left: tuple[int, ...], right: tuple[int, ...], *hits: int, **changes: Any) -> dict[str, int]:
    """Return the cells of two requests that are admitted in one step."""
    both = (hit(0, left, hits[0]), hit(1, right, hits[1], sent=0.0, **changes))
    return cells(*both, steps=(step(0, *(admit(number, cached) for number, cached in enumerate(hits))),))


def turn(cached: int) -> dict[str, int]:
    """Return the cells of a next turn that hits this many of 34 written tokens."""
    return cells(outcome(0, WHOLE), hit(1, (*WHOLE, 7, 8, 9, 10), cached))


def conflict(adapter: str | None) -> dict[str, int]:
    """Return the cells of a prompt with one adapter content after the same prompt with another."""
    return cells(outcome(0, PROMPT, adapter=adapter), outcome(1, PROMPT, adapter="a"))


def beside(*, decoding: int, others: int) -> dict[str, int]:
    """Return the cells of a step that computes a whole prompt beside others."""
    chunks = tuple(chunk(number, 0, 40) for number in range(1 + others))
    numbers = [outcome(number, PROMPT, sent=0.0) for number in range(1 + others)]
    return cells(*numbers, steps=(step(0, *map(admit, range(1 + others)), chunks=chunks, decoding=decoding),))


def admitted(count: int) -> dict[str, int]:
    """Return the cells of a step that admits this many requests."""
    return cells(*(outcome(n, OTHER, sent=0.0) for n in range(count)), steps=(step(0, *map(admit, range(count))),))


def pool(*, free: int) -> dict[str, int]:
    """Return the cells of a hit beside a running request that leaves this many of 1,000 blocks free."""
    return cells(slow(0), hit(1), steps=(step(0, admit(0)), step(1, admit(1, 32), free=free)))


def resumed(cached: int) -> dict[str, int]:
    """Return the cells of a request that is resumed after three tokens of its answer, with this hit."""
    return cells(slow(0, preempted_at=(0.75,)), steps=(step(0, admit(0)), step(2, admit(0, cached, resumed=True))))


def priorities(priority: int) -> dict[str, int]:
    """Return the cells of two requests of one burst.

    The later one has this priority, and starts first if it is negative.
    """
    workload = Workload((burst(ask(), ask(priority=priority)),))
    order = (1, 0) if priority else (0, 1)
    steps = tuple(step(at, admit(number)) for at, number in enumerate(order))
    return cells(slow(0), slow(1, OTHER, sent=0.0), steps=steps, workload=workload, steps_of=(record(0),))


def repeated_after(between: Any) -> dict[str, int]:
    """Return the cells of a prompt, a step, and the prompt again with the longest hit."""
    workload = Workload((burst(ask()), between, burst(ask())))
    steps = (record(0), record(1, started=0.6, finished=0.7), record(2))
    return cells(outcome(0, PROMPT), hit(1, sent=2.0, finished=2.5, step=2), workload=workload, steps_of=steps)


def updated(version: str, *, during: bool = False, paused: bool = False) -> dict[str, int]:
    """Return the cells of an update of the weights during a prompt or after it, and of the prompt again."""
    began = 0.3 if during else 0.7
    update = WeightUpdate(began=began, ended=began + 0.1, version=version, weights=None, route=WeightRoute.PATH)
    pause = PauseRecord(began=0.1, ended=0.2, mode=PauseMode.KEEP, clear=False, resumed=0.8, running=0.9)
    more = {"pauses": (pause,)} if paused else {}
    return cells(outcome(0, PROMPT), outcome(1, PROMPT), updates=(update,), weights={"v": "digest"}, **more)


def loaded(*loads: Any) -> dict[str, int]:
    """Return the cells of these loads, while no request runs."""
    return reached(history(workload=Workload(loads), steps=tuple(record(i) for i in range(len(loads)))))


def loaded_under_traffic(name: str) -> dict[str, int]:
    """Return the cells of a reload of `tenant`, while a request with this name runs."""
    change = Meanwhile(change=put("B", route=Route.IN_PLACE), after_tokens=1)
    workload = Workload((Burst(requests=(ask(adapter=name),), meanwhile=change),))
    one = outcome(0, PROMPT, adapter="digest-a")
    partition = msgspec.structs.replace(one.partition, name=name)
    steps = (record(0, change_began=0.2, change_ended=0.3),)
    return cells(msgspec.structs.replace(one, partition=partition), workload=workload, steps_of=steps)


def loads_of_tier(between: Any, *, failed: float = 0.0) -> dict[str, int]:
    """Return the cells of a step, and of a burst that loads 32 tokens from the second tier."""
    grown = Metrics(external_hit_tokens=32.0, failed_loads=failed, resumed_hit_tokens=0.0)
    nothing = Metrics(external_hit_tokens=0.0, failed_loads=0.0, resumed_hit_tokens=0.0)
    steps = (record(0), record(1, before=nothing, after=grown))
    workload = Workload((between, burst(ask())))
    return cells(outcome(0, PROMPT, step=1), workload=workload, steps_of=steps, shape=shape(second_tier=True))


CELLS = {cell for family in families() for cell in family.cells()}
CASES = {**lookup_cells(), **scheduler_cells(), **change_cells(), **size_cells()}


@pytest.mark.parametrize("cell", CASES)
def test_a_history_reaches_the_cell_and_a_similar_one_does_not(cell: str) -> None:
    """The two histories differ in what the cell stands for."""
    shows, does_not = CASES[cell]
    assert cell in CELLS
    assert shows.get(cell, 0) > 0, sorted(shows)
    assert cell not in does_not


def test_every_family_is_tested() -> None:
    """A family without a tested history could count anything."""
    assert {family.id for family in families()} == {cell.split("/")[0] for cell in CASES}


def test_features_add_their_tables_between_those_of_the_room() -> None:
    """Reports show the tables in the order that is registered."""
    names = [family.id for family in families()]
    assert (
        names.index("reset") < names.index("load") < names.index("update") < names.index("tier") < names.index("length")
    )
    assert "update" not in {family.id for family in (*LOOKUPS, *SCHEDULING, *CHANGES, *SIZES)}


def test_two_functions_cannot_have_the_same_place() -> None:
    """Their order in reports would depend on the order of imports."""
    REGISTERED.load()
    with pytest.raises(ValueError, match="have the same place in the order: 300"):
        states(order=300)(lambda _: iter(()))


def test_cells_that_cannot_exist_are_named_in_their_families() -> None:
    """A key of `absent` that names no cell would leave the cell in."""
    for family in families():
        assert set(family.absent) <= {f"{row}/{column}" for row in family.rows for column in family.columns}
    assert not CELLS & absent()
    assert all(family.absent[cell] for family in families() for cell in family.absent)


def test_a_cell_that_cannot_exist_is_not_counted() -> None:
    """A reset that succeeds while requests hold blocks is a defect, and checkers report it."""
    assert "reset/decode/done" not in cells(slow(0), resets=(reset(0.7),))


def test_a_history_says_what_it_can_show() -> None:
    """Without steps, cells that need them are unknown, and do not count as never reached."""
    plain = history(outcome(0, PROMPT, cached_tokens=None))
    assert seen_by(plain) == []
    assert seen_by(history(outcome(0, PROMPT))) == [Needs.COUNTS]
    recorded = history(outcome(0, PROMPT), engine_steps=(), shape=shape(second_tier=True))
    assert seen_by(recorded) == [Needs.COUNTS, Needs.STEPS, Needs.TIER]


RUN_HERE = [name for name in FAMILIES if not NEEDS_WEIGHTS & set(name.split())]


@pytest.mark.parametrize("family", with_samples(RUN_HERE, "mixed", "traffic", "switches", "resets"))
def test_only_cells_of_the_model_are_counted(family: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A key that is in no table would be lost in every report."""

    @settings(max_examples=3, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=SLOW)
    @given(workload=FAMILIES[family](limits(block=16, longest=1024, pool=512)))
    def check(workload: Workload) -> None:
        seen = play(ScriptedEngine(), tmp_path_factory.mktemp("run"), *workload.steps)
        assert set(reached(seen)) <= CELLS

    check()


@given(identity=st.sampled_from((Identity("a", None), Identity(None, "s"))))
def test_a_prompt_conflicts_only_with_other_identities(identity: Identity) -> None:
    """Equal identities do not conflict."""
    both = [msgspec.structs.replace(outcome(n, PROMPT), identities=(identity,)) for n in range(2)]
    assert not [cell for cell in cells(*both) if cell.startswith("conflict/")]


@pytest.mark.parametrize(
    ("kinds", "named", "rows"),
    [
        (WeightRoute, UPDATE_ROUTES, UPDATE.rows),
        (PauseMode, PAUSES, PAUSE.rows),
        (Route, ROUTES, LOAD.rows),
    ],
)
def test_each_kind_of_a_step_has_a_row(
    kinds: type[enum.StrEnum], named: dict[Any, str], rows: Mapping[str, str]
) -> None:
    """A kind without one ended each run that had it: updates of the weights by a transfer."""
    assert set(named) == set(kinds)
    assert set(named.values()) <= set(rows)
