"""Checkers leave out what a session may cause, and still report everything else."""

from __future__ import annotations

from typing import Any

import pytest
from support.histories import BLOCK, ask, burst, history, outcome, shape

from coldproof.adapters.protocol.shape import GroupShape
from coldproof.harness.features.preemption.checks import needs_the_same
from coldproof.harness.features.sessions.steps import CloseSession
from coldproof.harness.history.records import History, Outcome
from coldproof.harness.judgement.checkers.liveness import check_liveness
from coldproof.harness.judgement.reference_cache import bounds
from coldproof.harness.judgement.request_sizes import never_fits
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.workload.steps import Step, Workload

OPENED = outcome(0, range(100, 100 + 10 * BLOCK), session="a")
HANGS: dict[str, Any] = {"tokens": (), "error": "no progress", "silent": True, "cached_tokens": None}


def waiting(blocks: int, *, closed: bool = False, pool: int = 20, **more: Any) -> History:
    """Return a history of a session of eleven blocks and a request of `blocks` blocks without an answer."""
    steps: list[Step] = [burst(ask()), CloseSession("a") if closed else burst(ask()), burst(ask())]
    late = outcome(1, range(500, 500 + (blocks - 1) * BLOCK), step=2, **HANGS)
    workload = Workload(tuple(steps))
    return history(OPENED, late, workload=workload, shape=shape(pool_blocks=pool, **more), engine_lost="it hangs")


@pytest.mark.parametrize(
    ("known", "hangs"),
    [
        (waiting(4), True),
        (waiting(12), False),
        (waiting(12, closed=True), True),
        (waiting(12, pool=30), True),
        (waiting(4, most_requests=1), False),
        (waiting(4, most_requests=2), True),
    ],
)
def test_a_request_may_wait_for_a_session_only_if_both_do_not_fit(known: History, hangs: bool) -> None:
    """Blocks may be short, or places for running requests."""
    found = check_liveness(known)
    assert [one.failure_class for one in found] == ([FailureClass.HANG] if hangs else [])


def test_without_a_session_a_hang_is_a_hang() -> None:
    """It is one however little room there is."""
    alone = outcome(1, range(500, 500 + 15 * BLOCK), step=1, **HANGS)
    before = outcome(0, OPENED.prompt)
    assert check_liveness(history(before, alone, shape=shape(pool_blocks=16), engine_lost="it hangs"))


def test_a_session_may_continue_before_others() -> None:
    """No order is judged between a session and other requests."""
    plain = outcome(1, range(40))
    assert needs_the_same(plain, outcome(2, range(40)))
    assert not needs_the_same(plain, OPENED)
    assert not needs_the_same(OPENED, plain)


def test_the_prompt_of_a_session_may_fill_the_context() -> None:
    """No engine documents that a token must fit after it."""
    sizes = shape(max_model_tokens=160)
    assert never_fits(history(shape=sizes), outcome(0, range(160)))
    assert not never_fits(history(shape=sizes), OPENED)
    assert never_fits(history(shape=sizes), outcome(0, range(161), session="a"))


@pytest.mark.parametrize(("session", "least"), [("a", None), (None, 9 * BLOCK)])
def test_sparse_layers_give_no_lower_bound_for_the_turn_of_a_session(session: str | None, least: int | None) -> None:
    """The boundary that they keep may have been passed while an earlier turn was decoded."""
    sparse = shape(uniform=False, groups=(GroupShape(BLOCK), GroupShape(BLOCK, most_blocks=4)))
    first: Outcome = outcome(0, OPENED.prompt, **({"session": session} if session else {}))
    known = history(first, outcome(1, OPENED.prompt), shape=sparse)
    assert (bounds(known)[1].at_least or None) == least


@pytest.mark.parametrize(("one", "other", "least"), [(False, False, 8 * BLOCK), (True, False, 0), (False, True, 0)])
def test_a_streaming_session_does_not_share_its_kv(one: bool, other: bool, least: int) -> None:
    """Neither it nor other requests are expected to hit each other's KV. The upper bound counts what was computed."""
    prompt = range(8 * BLOCK + 5)
    first, then = (
        outcome(number, prompt, **({"session": "a", "streaming": True} if streams else {}))
        for number, streams in enumerate((one, other))
    )
    found = bounds(history(first, then))[1]
    assert (found.at_least or 0, found.at_most) == (least, len(prompt) - 1)
