"""Sessions in workloads have rules for validity, a description, and a way to send them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support.histories import ask, burst, put

from coldproof.adapters.protocol.requests import Abort, ResponseOptions
from coldproof.harness.execution.runner.requests import held_tokens
from coldproof.harness.features.sessions.steps import CloseSession
from coldproof.harness.history.prompts import tokens_of
from coldproof.harness.history.records import CachePartition, Outcome
from coldproof.harness.proof.minimise.reduce import smaller
from coldproof.harness.workload.describe import describe
from coldproof.harness.workload.steps import Burst, Idle, Meanwhile, Prompt, Request, Reset, Segment, Step, Workload
from coldproof.harness.workload.tokens import NONCE_TOKENS
from coldproof.harness.workload.validity import is_valid

FIRST = ask(("stem", 40), session="a")
STREAMING = ask(("stem", 40), session="a", streaming=True)
CLOSE = CloseSession("a")


def turn(before: int = 0, *, start: int = 0, end: int | None = -1, **more: Any) -> Request:
    """Return the next turn of session a."""
    prompt = Prompt((Segment("input", 5),), continues=before, start=start, end=end)
    return Request(**{"prompt": prompt, "session": "a", **more})


def appended(before: int = 0, *, end: int | None = None, **more: Any) -> Request:
    """Return the next turn of session a, which is a streaming one."""
    return turn(before, end=end, streaming=True, **more)


def alone(*steps: Step | Request) -> Workload:
    """Return a workload in which each request is a burst of its own."""
    return Workload(tuple(burst(step) if isinstance(step, Request) else step for step in steps))


@pytest.mark.parametrize(
    ("workload", "valid"),
    [
        (alone(FIRST, turn(), turn(1), CLOSE, Idle(10)), True),
        (alone(FIRST, turn(), CLOSE), True),
        (alone(FIRST, turn()), True),
        (alone(FIRST, ask(("other", 9)), turn()), True),
        (alone(FIRST, turn(abort=Abort(after_tokens=2))), True),
        (alone(FIRST, turn(abort=Abort(after_tokens=2)), turn(1)), False),
        (alone(FIRST, turn(), turn(0)), False),  # not the latest turn
        (alone(FIRST, turn(end=None)), False),  # the last token is dropped
        (alone(FIRST, turn(start=4)), False),
        (alone(FIRST, turn(salt="red")), False),
        (alone(FIRST, turn(priority=1)), False),
        (alone(FIRST, turn(options=ResponseOptions(answers=2))), False),
        (alone(FIRST, CLOSE, turn()), False),
        (alone(CLOSE, FIRST), False),
        (alone(FIRST, Idle(10)), False),
        (alone(FIRST, Reset(), CLOSE), False),
        (alone(FIRST, put("A"), CLOSE), False),
        (alone(FIRST, Burst(requests=(ask(("x", 9)),), meanwhile=Meanwhile(change=Reset(), after_tokens=1))), False),
        (Workload((burst(FIRST, FIRST),)), False),
        (alone(turn(before=None)), False),  # type: ignore[arg-type]
        (alone(STREAMING, appended(), CLOSE, Idle(10)), True),
        (alone(put("A"), STREAMING, appended(adapter="tenant"), appended(1), CLOSE), True),
        (alone(put("A"), FIRST, turn(adapter="tenant")), False),
        (alone(STREAMING, appended(salt="red")), False),
        (alone(STREAMING, appended(end=-1)), False),  # nothing is dropped
        (alone(STREAMING, turn()), False),
        (alone(FIRST, appended()), False),
        (alone(ask(("stem", 40), streaming=True)), False),  # of no session
    ],
)
def test_a_session_continues_its_latest_turn_until_it_is_closed(workload: Workload, valid: bool) -> None:
    """While it is open, the workload may only send requests."""
    assert is_valid(workload) is valid


def test_a_request_is_described_with_its_session() -> None:
    """The step that closes a session names it as well."""
    assert "request 1 to the base model in session 'a'" in describe(burst(turn()), 1)
    assert "request 1 to the base model in streaming session 'a'" in describe(burst(appended()), 1)
    assert describe(CLOSE, 0) == "close session 'a'"
    assert describe(CloseSession("a", aborted=True), 0) == "abort session 'a'"


def test_a_turn_is_sent_as_the_tokens_behind_what_its_session_holds() -> None:
    """Its prompt has all tokens, except for the last token of the answer before it."""
    own = tokens_of(FIRST, "n", {})
    known = Outcome(
        request=0,
        step=0,
        model="base",
        prompt=own,
        max_tokens=3,
        identities=(),
        partition=CachePartition(None, 0, None),
        tokens=(),
        sent=0,
        finished=1,
    )
    later = msgspec.structs.replace(known, prompt=tokens_of(turn(), "n", {0: known}))
    assert held_tokens(known, FIRST) == 0
    assert held_tokens(later, turn()) == len(own) - 1 == NONCE_TOKENS + 39
    assert held_tokens(later, msgspec.structs.replace(turn(), session=None)) == 0


def test_a_smaller_workload_has_valid_sessions() -> None:
    """A turn in the middle cannot be removed alone, nor can a close if the engine is idle after it."""
    workload = alone(FIRST, turn(), turn(1), CLOSE, Idle(10))
    found = list(smaller(workload, None))
    assert found
    assert all(is_valid(one) for one in found)
    assert not any(len(one.steps) == 4 and Idle(10) in one.steps and CLOSE not in one.steps for one in found)
