"""A client that hangs up says how far the engine had come, as far as it can be seen, and the engine learns of it."""

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

from coldproof.adapters.common.redact import KEY_VARIABLE
from coldproof.adapters.protocol.engine import RequestRefused
from coldproof.adapters.protocol.requests import Abort, Completion, CompletionRequest, Message, Stage
from coldproof.adapters.server.client import HttpClient
from coldproof.adapters.server.disconnect import OneConnection, wait_for_disconnect

PROMPT = tuple(range(40, 80))
HOUR_MS = 3_600_000
COLD = answer(MODEL, PROMPT, 20)
QUEUE = 'vllm:num_requests_running{{engine="0"}} {}\nvllm:num_requests_waiting{{engine="0"}} {}\n'


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The developer's own key stays out of these tests."""
    monkeypatch.delenv(KEY_VARIABLE, raising=False)


@pytest.fixture
def fake(request: pytest.FixtureRequest) -> Iterator[FakeServer]:
    """A stand-in server, with the manners that the test is parametrized with."""
    with serving(getattr(request, "param", None)) as server:
        yield server


def asked(fake: FakeServer, **abort: Any) -> Completion:
    """Twenty tokens wanted, by a client that hangs up."""
    request = CompletionRequest(model=MODEL, prompt=PROMPT, max_tokens=20, abort=Abort(**abort))
    return HttpClient(fake.url, alive=lambda: True).complete(request)


@contextmanager
def streaming(behaviour: ServerBehaviour) -> Iterator[requests.Response]:
    """An answer of which nothing was read."""
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
    """The tokens so far are the answer's first ones, and the server notices that nobody listens."""
    got = asked(fake, after_tokens=tokens)
    assert [t.id for t in got.tokens] == COLD[:tokens]
    assert (got.aborted, got.finish_reason, got.cached_tokens) == (Stage.DECODE, None, None)
    assert fake.client_disconnected.wait()


@pytest.mark.parametrize("tokens", [20, 99])
def test_an_answer_that_ends_before_is_whole(fake: FakeServer, tokens: int) -> None:
    """Whoever has the last token has nothing to hang up on."""
    got = asked(fake, after_tokens=tokens)
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
def test_a_silence_is_ended_and_its_stage_told_by_the_gauges(fake: FakeServer, stage: Stage) -> None:
    """Without a token; the engine is asked while the request is still with it."""
    got = asked(fake, after_ms=50)
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
def test_who_waits_for_the_beginning_hangs_up_in_prefill_or_at_the_first_token(
    fake: FakeServer, stage: Stage, tokens: int
) -> None:
    """However long the engine takes to begin, and whether or not it says so."""
    got = asked(fake, after_ms=1, at=Stage.PREFILL)
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
    """As llama.cpp sends them: otherwise nobody could leave its queue."""
    with serving(ServerBehaviour(holds_after=tokens, metrics=metrics, late_headers=True)) as fake:
        got = asked(fake, after_ms=1, at=at)
        assert ([t.id for t in got.tokens], got.aborted) == (COLD[:tokens], stage)
        assert fake.client_disconnected.wait()


def test_a_connection_that_has_ended_cannot_be_shut_down() -> None:
    """A server may end it at the same moment; the request's own thread tells what became of it."""
    adapter = OneConnection()
    assert not adapter.shut_down()
    ours, theirs = socket.socketpair()
    adapter.connection, adapter.waits = SimpleNamespace(sock=ours), True
    ours.close()
    theirs.close()
    assert not adapter.shut_down()


def test_a_connection_is_not_shut_down_before_its_request_was_sent(fake: FakeServer) -> None:
    """On a busy machine the client may be due to leave before that, and the server would never have known of it."""
    adapter, shut_down = OneConnection(), []

    class Body(io.BytesIO):
        """Part of a request that is being sent."""

        def read(self, size: int | None = -1) -> bytes:
            shut_down.append(adapter.shut_down())
            return super().read(size)

    said = json.dumps({"model": MODEL, "prompt": list(PROMPT), "max_tokens": 20}).encode()
    with requests.Session() as session:
        session.mount("http://", adapter)
        assert session.post(f"{fake.url}/v1/completions", data=Body(said)).ok
    assert shut_down
    assert not any(shut_down)


def test_a_server_that_refuses_a_client_in_a_hurry_is_understood() -> None:
    """What the request raises in its own thread is what its caller gets."""
    with serving(ServerBehaviour(fault=Fault.REFUSES)) as fake, pytest.raises(RequestRefused):
        asked(fake, after_ms=1, at=Stage.QUEUED)


def test_a_first_token_that_comes_while_the_gauges_are_read_is_no_prefill() -> None:
    """They may be older than it."""
    stages, due, sent = iter([Stage.QUEUED, Stage.PREFILL]), threading.Event(), threading.Event()

    def stage() -> Stage:
        told = next(stages)
        if told is Stage.PREFILL:
            due.set()
            sent.wait()
        return told

    with streaming(ServerBehaviour(before=due.wait, after=lambda _: sent.set())) as response:
        assert wait_for_disconnect(response, Abort(after_ms=1, at=Stage.PREFILL), stage, 5.0) is None
    assert next(stages, None) is None


def test_who_waits_for_a_beginning_that_never_comes_gives_up() -> None:
    """As whoever waits for any answer does."""
    with streaming(ServerBehaviour(holds_after=0)) as response:
        told = wait_for_disconnect(response, Abort(after_ms=1, at=Stage.PREFILL), lambda: Stage.QUEUED, 0.2)
    assert told is Stage.QUEUED


@pytest.mark.parametrize("fake", [ServerBehaviour(holds_after=1)], indirect=True)
def test_a_token_that_comes_in_time_is_hung_up_on(fake: FakeServer) -> None:
    """The silence did not last; the client leaves all the same, and says that it left while tokens came."""
    got = asked(fake, after_ms=HOUR_MS)
    assert [t.id for t in got.tokens] == COLD[:1]
    assert got.aborted is Stage.DECODE


@pytest.mark.parametrize(
    "fake",
    [ServerBehaviour(at_once=True, metrics=QUEUE.format(1, 0))],
    indirect=True,
    ids=["headers and tokens in one"],
)
def test_a_token_that_came_with_the_headers_is_no_silence(fake: FakeServer) -> None:
    """It lies in the client's own buffer: nothing more comes through the socket, and nothing is in prefill."""
    got = asked(fake, after_ms=HOUR_MS)
    assert got.aborted is Stage.DECODE
    assert [t.id for t in got.tokens] == COLD[:1]


@pytest.mark.parametrize("fake", [ServerBehaviour(holds_after=2)], indirect=True)
def test_a_chat_is_hung_up_on_alike(fake: FakeServer) -> None:
    """By its own entry point."""
    messages = (Message("system", "Be brief."), Message("user", "Hello."))
    prompt = rendered([{"role": m.role, "content": m.content} for m in messages])
    request = CompletionRequest(
        model=MODEL, prompt=prompt, max_tokens=20, messages=messages, abort=Abort(after_tokens=2)
    )
    got = HttpClient(fake.url, alive=lambda: True).complete(request)
    assert [t.id for t in got.tokens] == answer(MODEL, prompt, 2)
    assert got.aborted is Stage.DECODE
    assert fake.client_disconnected.wait()


def test_who_waits_for_a_preemption_stays_to_the_end(fake: FakeServer) -> None:
    """A client cannot see one."""
    got = asked(fake, at=Stage.PREEMPTED)
    assert (len(got.tokens), got.aborted, got.finish_reason) == (20, None, "length")
