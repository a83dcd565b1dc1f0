"""A client that disconnects reports the stage of its request as far as it is visible, and the engine is informed."""

from __future__ import annotations

import io
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import requests
from support.fake_reply import MODEL, Fault, ServerBehaviour, answer, rendered
from support.fake_server import FakeServer, serving

from coldproof.adapters.protocol.engine import RequestRefused
from coldproof.adapters.protocol.requests import Abort, Completion, CompletionRequest, Message, Stage
from coldproof.adapters.server.client import HttpClient
from coldproof.adapters.server.disconnect import OneConnection, wait_for_disconnect

PROMPT = tuple(range(40, 80))
HOUR_MS = 3_600_000
COLD = answer(MODEL, PROMPT, 20)
QUEUE = 'vllm:num_requests_running{{engine="0"}} {}\nvllm:num_requests_waiting{{engine="0"}} {}\n'


def aborted_answer(fake: FakeServer, **abort: Any) -> Completion:
    """Request twenty tokens with a client that disconnects."""
    request = CompletionRequest(model=MODEL, prompt=PROMPT, max_tokens=20, abort=Abort(**abort))
    return HttpClient(fake.url, alive=lambda: True).complete(request)


@contextmanager
def streaming(behaviour: ServerBehaviour) -> Iterator[requests.Response]:
    """Yield a streamed answer of which nothing was read."""
    said = {"model": MODEL, "prompt": list(PROMPT), "max_tokens": 20, "stream": True}
    with (
        serving(behaviour) as fake,
        requests.post(f"{fake.url}/v1/completions", json=said, stream=True) as response,
    ):
        yield response


@pytest.mark.parametrize(
    ("fake", "tokens"), [(ServerBehaviour(holds_after=1), 1), (ServerBehaviour(holds_after=3), 3)], indirect=["fake"]
)
def test_after_so_many_tokens_nothing_more_is_read(fake: FakeServer, tokens: int) -> None:
    """The answer has the first tokens, and the server detects the disconnect."""
    got = aborted_answer(fake, after_tokens=tokens)
    assert [t.id for t in got.tokens] == COLD[:tokens]
    assert (got.aborted, got.finish_reason, got.cached_tokens) == (Stage.DECODE, None, None)
    assert fake.client_disconnected.wait()


@pytest.mark.parametrize("tokens", [20, 99])
def test_an_answer_that_ends_before_is_whole(fake: FakeServer, tokens: int) -> None:
    """A client that has the last token has no reason to disconnect."""
    got = aborted_answer(fake, after_tokens=tokens)
    assert [t.id for t in got.tokens] == COLD
    assert (got.aborted, got.finish_reason, got.cached_tokens) == (None, "length", 0)
    assert not fake.client_disconnected.is_set()


@pytest.mark.parametrize(
    ("fake", "stage"),
    [
        (ServerBehaviour(holds_after=0, metrics=QUEUE.format(2, 1)), Stage.QUEUED),
        (ServerBehaviour(holds_after=0, metrics=QUEUE.format(1, 0)), Stage.PREFILL),
        (ServerBehaviour(holds_after=0, metrics=QUEUE.format(0, 0)), Stage.UNSEEN),
        (ServerBehaviour(holds_after=0, metrics=None), Stage.UNSEEN),
        (ServerBehaviour(holds_after=0, metrics=QUEUE.format(1, 0), one_by_one=True), Stage.PREFILL),
    ],
    indirect=["fake"],
    ids=["waiting", "running", "neither", "no gauges", "a connection each"],
)
def test_a_silent_request_is_aborted_and_the_gauges_give_its_stage(fake: FakeServer, stage: Stage) -> None:
    """The gauges are read while the request is still on the engine."""
    got = aborted_answer(fake, after_ms=50)
    assert (got.tokens, got.aborted) == ((), stage)
    assert fake.client_disconnected.wait()


@pytest.mark.parametrize(
    ("fake", "stage", "tokens"),
    [
        (ServerBehaviour(holds_after=0, metrics=QUEUE.format(1, 0)), Stage.PREFILL, 0),
        (ServerBehaviour(delay=0.3, holds_after=1, metrics=QUEUE.format(2, 1)), Stage.DECODE, 1),
        (ServerBehaviour(delay=0.3, holds_after=1, metrics=QUEUE.format(0, 0)), Stage.DECODE, 1),
        (ServerBehaviour(delay=0.3, holds_after=1, metrics=None), Stage.DECODE, 1),
    ],
    indirect=["fake"],
    ids=["running", "waiting", "neither", "no gauges"],
)
def test_a_disconnect_in_prefill_happens_then_or_at_the_first_token(
    fake: FakeServer, stage: Stage, tokens: int
) -> None:
    """The client waits as long as the engine takes to begin, whether or not it reports the stage."""
    got = aborted_answer(fake, after_ms=1, at=Stage.PREFILL)
    assert ([t.id for t in got.tokens], got.aborted) == (COLD[:tokens], stage)
    assert fake.client_disconnected.wait()


@pytest.mark.parametrize(
    ("metrics", "at", "stage", "tokens"),
    [
        (QUEUE.format(4, 1), Stage.QUEUED, Stage.QUEUED, 0),
        (QUEUE.format(4, 0), Stage.QUEUED, Stage.DECODE, 1),
        (QUEUE.format(4, 0), Stage.PREFILL, Stage.PREFILL, 0),
        (QUEUE.format(4, 1), None, Stage.QUEUED, 0),
    ],
    ids=["queued", "never queued", "running", "any stage"],
)
def test_a_client_need_not_wait_for_headers_that_come_with_the_first_token(
    metrics: str, at: Stage | None, stage: Stage, tokens: int
) -> None:
    """llama.cpp sends headers with the first token; otherwise no client could leave its queue."""
    with serving(ServerBehaviour(holds_after=tokens, metrics=metrics, late_headers=True)) as fake:
        got = aborted_answer(fake, after_ms=1, at=at)
        assert ([t.id for t in got.tokens], got.aborted) == (COLD[:tokens], stage)
        assert fake.client_disconnected.wait()


def test_a_connection_that_has_ended_cannot_be_shut_down() -> None:
    """A server may close the connection at the same moment; the thread of the request then reports the result."""
    adapter = OneConnection()
    assert not adapter.shut_down()
    ours, theirs = socket.socketpair()
    adapter.connection, adapter.waits = SimpleNamespace(sock=ours), True
    ours.close()
    theirs.close()
    assert not adapter.shut_down()


def test_a_connection_is_not_shut_down_before_its_request_was_sent(fake: FakeServer) -> None:
    """On a busy machine the disconnect may be due earlier, and the server would never have seen the request."""
    adapter, shut_down = OneConnection(), []

    class Body(io.BytesIO):
        """Part of a request body that is being sent."""

        def read(self, size: int | None = -1) -> bytes:
            shut_down.append(adapter.shut_down())
            return super().read(size)

    said = json.dumps({"model": MODEL, "prompt": list(PROMPT), "max_tokens": 20}).encode()
    with requests.Session() as session:
        session.mount("http://", adapter)
        assert session.post(f"{fake.url}/v1/completions", data=Body(said)).ok
    assert shut_down
    assert not any(shut_down)


def test_a_refusal_before_a_disconnect_is_raised() -> None:
    """The exception of the request's own thread is raised to the caller."""
    with serving(ServerBehaviour(fault=Fault.REFUSES)) as fake, pytest.raises(RequestRefused):
        aborted_answer(fake, after_ms=1, at=Stage.QUEUED)


def test_a_first_token_that_comes_while_the_gauges_are_read_is_no_prefill() -> None:
    """The gauges may be older than the first token."""
    stages, due, sent = iter([Stage.QUEUED, Stage.PREFILL]), threading.Event(), threading.Event()

    def stage() -> Stage:
        reported = next(stages)
        if reported is Stage.PREFILL:
            due.set()
            sent.wait()
        return reported

    with streaming(ServerBehaviour(before=due.wait, after=lambda _: sent.set())) as response:
        assert wait_for_disconnect(response, Abort(after_ms=1, at=Stage.PREFILL), stage, 5.0) is None
    assert next(stages, None) is None


def test_a_wait_for_prefill_ends_at_the_timeout() -> None:
    """The wait ends at the read timeout, as for any answer."""
    with streaming(ServerBehaviour(holds_after=0)) as response:
        reported = wait_for_disconnect(response, Abort(after_ms=1, at=Stage.PREFILL), lambda: Stage.QUEUED, 0.2)
    assert reported is Stage.QUEUED


@pytest.mark.parametrize("fake", [ServerBehaviour(holds_after=1)], indirect=True)
def test_a_client_disconnects_at_a_token_that_comes_in_time(fake: FakeServer) -> None:
    """The client disconnects at the token, and reports that it left while decoding."""
    got = aborted_answer(fake, after_ms=HOUR_MS)
    assert [t.id for t in got.tokens] == COLD[:1]
    assert got.aborted is Stage.DECODE


@pytest.mark.parametrize(
    "fake",
    [ServerBehaviour(at_once=True, metrics=QUEUE.format(1, 0))],
    indirect=True,
    ids=["headers and tokens in one"],
)
def test_a_token_that_came_with_the_headers_is_no_silence(fake: FakeServer) -> None:
    """The token is in the client's buffer: the socket shows nothing more, and the request is not in prefill."""
    got = aborted_answer(fake, after_ms=HOUR_MS)
    assert got.aborted is Stage.DECODE
    assert [t.id for t in got.tokens] == COLD[:1]


@pytest.mark.parametrize("fake", [ServerBehaviour(holds_after=2)], indirect=True)
def test_a_client_disconnects_from_a_chat_in_the_same_way(fake: FakeServer) -> None:
    """The chat endpoint behaves in the same way."""
    messages = (Message("system", "Be brief."), Message("user", "Hello."))
    prompt = rendered([{"role": m.role, "content": m.content} for m in messages])
    request = CompletionRequest(
        model=MODEL, prompt=prompt, max_tokens=20, messages=messages, abort=Abort(after_tokens=2)
    )
    got = HttpClient(fake.url, alive=lambda: True).complete(request)
    assert [t.id for t in got.tokens] == answer(MODEL, prompt, 2)
    assert got.aborted is Stage.DECODE
    assert fake.client_disconnected.wait()


def test_a_client_that_waits_for_a_preemption_stays_to_the_end(fake: FakeServer) -> None:
    """A client cannot see a preemption."""
    got = aborted_answer(fake, at=Stage.PREEMPTED)
    assert (len(got.tokens), got.aborted, got.finish_reason) == (20, None, "length")
