"""The same workload on two implementations of one part: whatever one of them does better, the other one owes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from support.evidence import evidence
from support.histories import BLOCK, ask, burst, history, outcome, record, shape

from coldproof.adapters.protocol.engine_steps import Admission, EngineStep
from coldproof.adapters.protocol.kv_events import Cleared, EventBatch, KvEvent, Removed, Stored
from coldproof.adapters.protocol.requests import Abort
from coldproof.harness.features.twins.checks import check_twins
from coldproof.harness.features.twins.evidence import Twins
from coldproof.harness.history.kv_events import EngineRestart, RunEvents
from coldproof.harness.history.records import History, Outcome
from coldproof.harness.judgement.checkers.cached_tokens import check_bounds
from coldproof.harness.judgement.reference_cache import bounds
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.workload.halves import twice
from coldproof.harness.workload.steps import Burst, Workload

PROMPT = range(100, 100 + 3 * BLOCK + 2)
ONCE = Workload((burst(ask()), burst(ask())))
AT_ONCE = Workload((burst(ask(), ask()),))


def ran(first: dict[str, Any], second: dict[str, Any], *, workload: Workload = ONCE, **more: Any) -> History:
    """Return the history of two equal requests on both engines. `first`, `second`: the later one, on each of them."""
    sent = [outcome(0, PROMPT), outcome(1, PROMPT, **first), outcome(3, PROMPT), outcome(4, PROMPT, **second)]
    both = twice(workload)
    numbers = [(number, step) for number, step, _ in both.requests()]
    numbered = [msgspec.structs.replace(one, request=n, step=at) for one, (n, at) in zip(sent, numbers, strict=True)]
    steps = tuple(record(step) for step in range(len(both.steps)))
    facts = {"workload": both, "steps": steps, "shape": shape(block_size=None), **more}  # no bound of its own
    return history(*numbered, **facts)


def test_what_the_other_implementation_hit_is_a_lower_bound() -> None:
    """Where the block size is unknown, too. More is no violation: then the other one lost a hit."""
    lost = ran({"cached_tokens": 2 * BLOCK}, {"cached_tokens": BLOCK})
    assert bounds(lost)[3].at_least == 2 * BLOCK
    assert bounds(lost)[1].at_least is None
    (found,) = check_bounds(lost)
    assert (found.failure_class, found.request) == (FailureClass.LOST_REUSE, 3)
    assert found.sentence == (
        f"Request 3 hit {BLOCK} cached tokens, but the same request hit {2 * BLOCK} with the other implementation."
    )
    assert check_bounds(ran({"cached_tokens": BLOCK}, {"cached_tokens": 2 * BLOCK})) == []


def test_the_greater_of_both_bounds_counts() -> None:
    """The reference cache's is named as such."""
    made = ran({"cached_tokens": BLOCK}, {"cached_tokens": 0}, shape=shape())
    assert bounds(made)[3].at_least == 3 * BLOCK
    found = {one.request: one.sentence for one in check_bounds(made)}
    assert "an earlier request had left" in found[1]
    assert "with the other implementation" in found[3]


@pytest.mark.parametrize(
    ("steps", "compared"),
    [(None, 0), ((EngineStep(at=0.0),), 2)],
)
def test_requests_at_once_are_compared_where_steps_are_recorded(
    steps: tuple[EngineStep, ...] | None, compared: int
) -> None:
    """On another engine, which of them comes first is luck. The same holds for one that its client ends."""
    lost: tuple[dict[str, Any], dict[str, Any]] = ({"cached_tokens": 2 * BLOCK}, {"cached_tokens": BLOCK})
    ended = Workload((burst(ask()), burst(ask(abort=Abort(after_tokens=1)))))
    for workload in (AT_ONCE, ended):
        made = ran(*lost, workload=workload, engine_steps=steps)
        assert evidence(made, {})[Twins.COMPARED] == compared
        assert len(check_bounds(made)) == compared // 2
    assert evidence(ran(*lost), {})[Twins.HITS] == 1


def test_nothing_is_compared_where_the_workload_ran_once() -> None:
    """Two halves that differ are no twins either."""
    once = history(outcome(0, PROMPT), outcome(1, PROMPT), workload=ONCE)
    assert evidence(once, {})[Twins.COMPARED] == 0
    assert check_twins(once) == []


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ({}, {"refused": True, "error": "400"}, "Request 3 was refused; with the other implementation, the"),
        ({}, {"error": "500"}, "Request 3 ended with an error; "),
        ({"refused": True, "error": "400"}, {}, "the same request was refused."),
        ({"finish_reason": "stop"}, {}, "the same request was answered, with the finish reason 'stop'."),
        ({"preemptions": 0}, {"preemptions": 1}, "Request 3 was answered after 1 preemption, with"),
        ({"preemptions": 0}, {"preemptions": 2}, "Request 3 was answered after 2 preemptions, with"),
        ({"preemptions": None}, {"preemptions": 0}, ""),
        ({}, {}, ""),
    ],
)
def test_requests_end_alike(first: dict[str, Any], second: dict[str, Any], words: str) -> None:
    """Refused, failed, or answered after as many preemptions."""
    found = check_twins(ran(first, second))
    assert [one.failure_class for one in found] == [FailureClass.ACCOUNTING] * bool(words)
    assert all(words in one.sentence for one in found)


def resuming(*hits: tuple[int, int]) -> tuple[EngineStep, ...]:
    """Return steps in which requests resume with so many cached tokens, each after its first admission."""
    first = [EngineStep(at=0.0, admitted=(Admission(str(number), 99),)) for number, _ in hits]
    return (*first, *(EngineStep(at=1.0, admitted=(Admission(str(n), hit, resumed=True),)) for n, hit in hits))


def test_a_resumed_request_finds_as_much() -> None:
    """The cached tokens that a request reports are those of its first admission."""
    (found,) = check_twins(ran({}, {}, engine_steps=resuming((1, 2 * BLOCK), (3, BLOCK))))
    assert (found.failure_class, found.request) == (FailureClass.LOST_REUSE, 3)
    assert f"found {BLOCK} tokens cached when it resumed" in found.sentence
    assert check_twins(ran({}, {}, engine_steps=resuming((1, BLOCK), (3, 2 * BLOCK)))) == []


def stored(*hashes: str, parent: str | None = None, tokens: tuple[int, ...] = (1, 2)) -> Stored:
    """Return the event of stored blocks."""
    return Stored(hashes=hashes, parent=parent, tokens=tokens, block_size=BLOCK)


def removed(name: str) -> Removed:
    """Return the event of a removed block."""
    return Removed(hashes=(name,))


PAIR, OTHERS, CHAIN = [stored("a", "b")], [stored("x", "y")], [stored("a"), stored("b", parent="a")]


def published(first: Sequence[KvEvent], second: Sequence[KvEvent]) -> History:
    """Return a history in which both engines published these events."""
    batches = tuple(EventBatch(n, float(n), (one,)) for n, one in enumerate((*first, *second)))
    events = RunEvents(
        batches=batches,
        expected=0,
        before=(),
        in_pool=0,
        rule=None,
        slack=0.0,
        restarts=(EngineRestart(len(first), 2.0),),
    )
    return ran({}, {}, events=events)


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ([*PAIR, removed("a")], [*OTHERS, removed("x")], ""),
        (CHAIN, [stored("x"), stored("y", parent="x")], ""),
        (CHAIN, [stored("x"), stored("y")], "is the store of block 1 at the start of a prompt; with"),
        ([*PAIR, removed("a")], [*OTHERS, removed("y")], "2 is the removal of block 1; with the other implementation"),
        ([*PAIR, Cleared()], OTHERS, "2 is missing; with the other implementation, it is a reset of the cache."),
        (PAIR, [stored("x", "y", tokens=(1, 3))], "KV event 1 is the store of blocks 0, 1 at"),
    ],
)
def test_the_same_events_are_published(first: Sequence[KvEvent], second: Sequence[KvEvent], words: str) -> None:
    """Blocks are told apart by the order in which they are named: their hashes may be of two algorithms."""
    made = published(first, second)
    assert evidence(made, {})[Twins.EVENTS] == min(len(first), len(second))
    found = check_twins(made)
    assert bool(found) is bool(words)
    assert all(words in one.sentence for one in found)


def test_one_request_at_a_time_is_alone_in_its_burst() -> None:
    """The helper workloads are what their names say."""
    assert [len(step.requests) for step in AT_ONCE.steps if isinstance(step, Burst)] == [2]
    assert isinstance(ran({}, {}).outcomes[3], Outcome)
