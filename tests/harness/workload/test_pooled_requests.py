"""Requests for pooled answers have rules for validity, a description, and smaller versions."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.drawn_workloads import limits
from support.histories import ask, burst

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.endpoints import Endpoint
from coldproof.adapters.protocol.pooling import TASK_CAPABILITIES, Task
from coldproof.adapters.protocol.requests import PLAIN, Abort, ResponseOptions
from coldproof.harness.features.pooling.workloads import pooled_neighbours, pooled_traffic
from coldproof.harness.proof.minimise.reduce import plainer
from coldproof.harness.proof.minimise.simplify import simpler
from coldproof.harness.workload.describe import describe
from coldproof.harness.workload.steps import Request, Workload
from coldproof.harness.workload.validity import is_valid

VECTOR = ResponseOptions(pooled=Task.EMBED)
GENERATES = frozenset(Capability) - set(TASK_CAPABILITIES.values())


def pooled(**changes: Any) -> Request:
    """Return a request for a vector."""
    return ask(("stem", 40), **{"max_tokens": 0, "options": VECTOR, **changes})


@pytest.mark.parametrize(
    ("changes", "valid"),
    [
        ({}, True),
        ({"salt": "red", "priority": 3}, True),
        ({"max_tokens": 8}, False),
        ({"options": PLAIN}, False),
        ({"options": ResponseOptions(pooled=Task.EMBED, logprobs=True)}, False),
        ({"chat": True}, False),
        ({"abort": Abort(after_ms=5)}, False),
        ({"endpoint": Endpoint.COMPLETIONS}, False),
    ],
)
def test_a_pooled_answer_has_no_tokens(changes: dict[str, Any], valid: bool) -> None:
    """Nor has it options that belong to tokens."""
    assert is_valid(Workload((burst(pooled(**changes)),))) is valid


def test_a_request_is_described_with_its_task() -> None:
    """The task stands in place of a number of tokens."""
    each = ResponseOptions(pooled=Task.TOKEN_EMBED)
    assert "stem:40, an embedding of each token" in describe(burst(pooled(options=each)), 0)


def test_scores_are_not_requested_beside_vectors() -> None:
    """Without tokens there is nothing to score."""
    assert VECTOR.with_scores() == VECTOR
    assert VECTOR.plain() == VECTOR
    assert ResponseOptions(logprobs=True).plain() == PLAIN


def test_a_smaller_workload_still_requests_vectors() -> None:
    """Otherwise another failure would replace the one that is minimised."""
    workload = Workload((burst(pooled(priority=3, offset_ms=5), pooled()), burst(pooled())))
    smaller = [*simpler(workload), *plainer(workload, 0)]
    assert smaller
    for one in smaller:
        assert is_valid(one)
        assert all(request.options == VECTOR for _, _, request in one.requests())


@pytest.mark.parametrize("task", Task)
@settings(max_examples=30, deadline=None, database=None)
@given(data=st.data())
def test_only_tasks_of_the_engine_are_drawn(task: Task, data: st.DataObject) -> None:
    """This includes an engine with one task only."""
    on = msgspec.structs.replace(limits(), can=GENERATES | {TASK_CAPABILITIES[task]})
    for family in (pooled_neighbours, pooled_traffic):
        workload = data.draw(family(on, with_adapter=True, each_token=task.of_each_token))
        assert is_valid(workload)
        assert {request.options.pooled for _, _, request in workload.requests()} == {task}
