"""Whatever a server sends, a request ends in bounded time, with bounded bytes and a message of one line."""

from __future__ import annotations

import gzip
import itertools
import json
import socket
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tenacity
from support.fake_reply import MODEL, answer
from support.fake_server import ServerBehaviour
from support.histories import ask, burst, outcome, play, put
from support.hostile_server import JSON, OK, STREAM, Exchange, HostileServer, Script, attacking
from support.nightly import with_samples

from coldproof.adapters.common.redact import KEY_VARIABLE
from coldproof.adapters.endpoint.spec import attach
from coldproof.adapters.protocol.engine import (
    EngineDied,
    EngineError,
    EngineStartError,
    MalformedAnswer,
    RequestRefused,
    Served,
)
from coldproof.adapters.protocol.request_time import RequestOverdue, RequestTime
from coldproof.adapters.protocol.requests import CompletionRequest, ResponseOptions
from coldproof.adapters.protocol.violations import of_shape
from coldproof.adapters.server import attach as attach_module
from coldproof.adapters.server import busy, event_stream, transport
from coldproof.adapters.server.client import HttpClient
from coldproof.adapters.server.completions import SPARE_TOKENS
from coldproof.adapters.server.engine import ServerEngine
from coldproof.harness.execution.runner.requests import answered
from coldproof.harness.session.selftest.scripted_engine import ScriptedEngine

PROMPT = tuple(range(40, 60))
REQUEST = CompletionRequest(model=MODEL, prompt=PROMPT, max_tokens=4)
COLD = answer(MODEL, PROMPT, 4)
MODELS, COMPLETIONS = "GET /v1/models", "POST /v1/completions"
SLACK = 32 * transport.MIB  # bytes that the buffers of two sockets may hold
BACKSTOP = 300  # seconds until a test that would wait for ever fails


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the API key and the waits for a process that does not exist."""
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    monkeypatch.setattr(HttpClient, "wait_dead", lambda *_: False)
    monkeypatch.setattr(HttpClient._get.retry, "wait", tenacity.wait_none())
    monkeypatch.setattr(attach_module.wait_until_reachable.retry, "stop", tenacity.stop_after_attempt(1))


def client_of(server: HostileServer, time: RequestTime | None = None) -> HttpClient:
    """Return a client with a long read timeout, so that only the request's own limit can end it."""
    return HttpClient(server.url, alive=lambda: True, read_timeout=BACKSTOP, time=time)


def passing_time(seconds: float = 30.0) -> RequestTime:
    """Return a request time whose clock advances by one second per reading, however fast the server is."""
    return RequestTime(seconds, clock=itertools.count().__next__)


def event(**choice: Any) -> bytes:
    """Return one event of a stream."""
    return b"data: " + json.dumps({"choices": [{"index": 0, **choice}]}).encode() + b"\n\n"


def stream(*events: bytes) -> Script:
    """Return a script that streams these events and ends correctly."""
    return lambda exchange: exchange.send(STREAM, *events, b"data: [DONE]\n\n")


def endless_script(*start: bytes, parts: tuple[bytes, ...]) -> Script:
    """Return a script that sends `start`, then `parts` again and again."""

    def play(exchange: Exchange) -> None:
        exchange.send(*start)
        exchange.send_until_disconnect(parts)

    return play


# ---- Time


@pytest.mark.parametrize(
    "script",
    [
        endless_script(STREAM, parts=(b"x",)),
        endless_script(STREAM, parts=(b": still here\n",)),
        endless_script(STREAM, parts=(b"\n",)),
        endless_script(STREAM, parts=(b'data: {"choices": []}\n\n',)),
        endless_script(OK + b"Transfer-Encoding: chunked\r\n\r\n", parts=(b"1\r\n:\r\n",)),
        endless_script(OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", parts=(b"Trailer: x\r\n",)),
        endless_script(OK + b"Content-Length: 1000000000\r\n\r\n", parts=(b" ",)),
        endless_script(parts=(b"HTTP/1.1 100 Continue\r\n\r\n",)),
    ],
    ids=["bytes", "comments", "blank lines", "empty events", "chunks", "trailers", "a long body", "100 Continue"],
)
def test_an_answer_that_never_ends_is_cut_off_when_the_time_is_over(script: Script) -> None:
    """A server that keeps sending does not extend the time limit."""
    with attacking({"": script}) as server:
        with pytest.raises(
            RequestOverdue, match=r"POST /v1/completions got no complete answer within 30 s: the server"
        ):
            client_of(server, passing_time()).complete(REQUEST)
        with pytest.raises(RequestOverdue, match=r"GET /v1/models got no complete answer within 30 s: the server"):
            client_of(server, passing_time()).get("/v1/models")


@pytest.mark.parametrize("start", [b"", b"HTTP/1.1 20", OK + b"Content-Le", STREAM, STREAM + event(token_ids=[65])])
def test_a_silent_server_is_abandoned_at_the_time_limit(start: bytes) -> None:
    """A server that stops before, in or after the headers is abandoned at the time limit."""

    def begin(exchange: Exchange) -> None:
        exchange.send(start)
        exchange.wait()

    said = r"the server sent (nothing|\d+ bytes without an end)"  # a busy machine may deliver the start too late
    with attacking({"": begin}) as server, pytest.raises(RequestOverdue, match=said):
        client_of(server, RequestTime(0.5)).complete(REQUEST)


def test_a_server_that_accepts_no_connection_is_abandoned_too() -> None:
    """A connection that the system accepts but no program takes ends at the time limit too."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(EngineStartError, match=r"/v1/models got no complete answer.*the server sent nothing"):
            attach(url, adapter_for=lambda _: None, time=RequestTime(0.5))


@pytest.mark.parametrize(
    "line", [MODELS, "GET /version", "GET /metrics", "GET /openapi.json", COMPLETIONS, "POST /tokenize"]
)
def test_the_setup_ends_wherever_a_server_stops_answering(line: str) -> None:
    """Each request of the setup has a deadline, and the error names the request."""
    ends = endless_script(STREAM, parts=(b": \n",))

    def late(exchange: Exchange) -> None:
        clock.late = True
        ends(exchange)

    clock = SimpleNamespace(late=False, now=0)

    def tick() -> float:
        clock.now += clock.late  # no time passes for the good answers, on a machine of any speed
        return float(clock.now)

    with attacking({line: late}) as server, pytest.raises(EngineStartError, match=f"{line} got no complete answer"):
        attach(server.url, adapter_for=lambda _: None, time=RequestTime(30, clock=tick))


def test_no_request_begins_after_the_end_of_the_run() -> None:
    """Once the run has no time left, no request is sent."""
    with attacking({}) as server:
        with pytest.raises(RequestOverdue, match="was not sent: the run has no time left"):
            client_of(server, RequestTime(run_left=lambda: -1.0)).complete(REQUEST)
        assert server.exchanges == []


def test_a_request_that_is_cut_off_is_no_answer_of_a_burst() -> None:
    """A request that was cut off leaves its burst without a result, because a checker would blame the engine."""
    with attacking({COMPLETIONS: endless_script(STREAM, parts=(b":\n",))}) as server:
        probed: Any = SimpleNamespace(version=None, base_model=MODEL, shape=SimpleNamespace(image=None, row_width=None))
        probed.capabilities, probed.cache_config, probed.null_is_miss = {}, {}, False
        engine = ServerEngine(name="x", client=client_of(server, passing_time()), probed=probed, config={})
        arrivals = [SimpleNamespace(request=REQUEST, offset_ms=0)]
        with pytest.raises(RequestOverdue):
            engine.serve(arrivals, lambda *_: None, lambda: None)  # type: ignore[arg-type]


class CutOff(ScriptedEngine):
    """A scripted engine whose requests are cut off."""

    def serve(self, *_: Any) -> list[Served]:
        """Raise the error that an attached server's client raises."""
        raise RequestOverdue("the time is over")


def test_a_run_that_is_cut_off_undoes_its_changes(tmp_path: Path) -> None:
    """The server is not managed by Coldproof: adapters are unloaded again, and no history is left to be judged."""
    engine = CutOff()
    before = dict(engine.contents)
    with pytest.raises(RequestOverdue, match="the time is over"):
        play(engine, tmp_path, put("A"), burst(ask(adapter="tenant")))
    assert engine.contents == before


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (b"", "accepts connections, but breaks them or sends no HTTP"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64), "sends no HTTP"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "sends no HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{", "breaks them"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n{", "expected a list with a model"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n", "breaks them"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n{}\r\n", "breaks them"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"f" * 40 + b"\r\n{}\r\n", "breaks them"),
        (b"HTTP/1.1 999999 \r\n\r\n", "sends no HTTP"),
        (b"HTTP/1.1 304 Not Modified\r\n\r\n", "HTTP 304"),
    ],
    ids=["closes", "TLS", "SSH", "short", "negative", "no size", "negative size", "a size too large", "status", "304"],
)
def test_what_is_no_answer_in_http_ends_the_setup_in_one_line(start: bytes, said: str) -> None:
    """The error names the address and has no traceback."""
    with attacking({"": lambda exchange: exchange.send(start)}) as server, pytest.raises(EngineStartError) as caught:
        attach(server.url, adapter_for=lambda _: None)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


# ---- Bytes


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> int:
    """Lower the limits to one MiB, so that the tests are fast."""
    for name in ("ANSWER_BYTES", "PAGE_BYTES", "ERROR_BYTES"):
        monkeypatch.setattr(transport, name, transport.MIB)
    monkeypatch.setattr(event_stream, "LINE_BYTES", transport.MIB // 4)
    return transport.MIB


BLOCK = bytes(65536)
CHUNK = b"10000\r\n" + BLOCK + b"\r\n"
TERABYTE = b"ffffffffff\r\n"


@pytest.mark.parametrize(
    "script",
    [
        endless_script(JSON, parts=(BLOCK,)),
        endless_script(STREAM, parts=(b"data: " + BLOCK,)),
        endless_script(STREAM, parts=(b": comment\n" * 1000,)),
        endless_script(OK + b"Transfer-Encoding: chunked\r\n\r\n", parts=(CHUNK,)),
        endless_script(OK + b"Transfer-Encoding: chunked\r\n\r\n" + TERABYTE, parts=(BLOCK,)),
        endless_script(OK + b"Transfer-Encoding: chunked\r\n\r\n", parts=(b"0" * 4096,)),
        endless_script(OK + b"X-Long: ", parts=(b"x" * 4096,)),
        endless_script(OK, parts=(b"X-Many: x\r\n",)),
        endless_script(b"HTTP/1.1 500 Error\r\nConnection: close\r\n\r\n", parts=(BLOCK,)),
        endless_script(OK + b"Content-Length: 1000000000000000000000\r\n\r\n", parts=(BLOCK,)),
    ],
    ids=["body", "line", "comments", "chunks", "one chunk", "a chunk's size", "header", "headers", "error", "length"],
)
@pytest.mark.parametrize(
    "path",  # the pages are read by one function
    with_samples(
        ["/v1/completions", "/v1/models", "/metrics", "/openapi.json", "/tokenize"],
        *("/v1/completions", "/v1/models", "/tokenize"),
    ),
)
def test_no_more_bytes_are_read_than_an_answer_may_have(small: int, script: Script, path: str) -> None:
    """The client's memory does not grow with what a server sends, wherever in the response it is."""
    with attacking({"": script}) as server:
        client = client_of(server)
        calls: dict[str, Callable[[], object]] = {
            "/v1/completions": lambda: client.complete(REQUEST),
            "/tokenize": lambda: client.tokens_of(MODEL, "x"),
        }
        with pytest.raises((MalformedAnswer, EngineDied)) as caught:
            calls.get(path, lambda: client.get(path))()
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 1000
        sent = max(exchange.sent for exchange in server.exchanges)
    assert sent < small + SLACK


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "gzip, gzip"])
def test_a_compressed_answer_is_refused_unread(coding: str) -> None:
    """Compression was not requested, and 600 MB of zeros take 0.6 MB."""
    bomb = gzip.compress(bytes(2**20))
    head = OK + f"Content-Encoding: {coding}\r\nContent-Length: {len(bomb)}\r\n\r\n".encode()
    with attacking({"": lambda exchange: exchange.send(head, bomb)}) as server:
        with pytest.raises(MalformedAnswer, match="a compressed body"):
            client_of(server).get("/metrics")
        with pytest.raises(MalformedAnswer, match="a compressed body"):
            client_of(server).complete(REQUEST)
        assert all(b"\r\nAccept-Encoding: identity\r\n" in exchange.request for exchange in server.exchanges)


@pytest.mark.parametrize("most", [1, 4])
def test_an_answer_with_more_tokens_than_requested_is_cut_off_soon(most: int) -> None:
    """The answer keeps enough tokens to show the fault, and the connection is closed."""
    left = threading.Event()

    def play(exchange: Exchange) -> None:
        try:
            exchange.send(STREAM)
            for token in itertools.cycle(COLD):
                exchange.send(event(token_ids=[token], text="x"))
        except OSError:
            left.set()

    with attacking({COMPLETIONS: play}) as server:
        got = client_of(server).complete(CompletionRequest(model=MODEL, prompt=PROMPT, max_tokens=most))
        assert left.wait(BACKSTOP)
    assert len(got.tokens) == most + SPARE_TOKENS + 1
    assert got.finish_reason is None


# ---- Other hosts, and servers that are busy


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(status: int) -> None:
    """Answers of the other server would count as this one's, and it would receive the API key."""
    with attacking({}) as other:
        moved = f"HTTP/1.1 {status} Moved\r\nLocation: {other.url}/x?token=abcdef\r\nContent-Length: 0\r\n\r\n".encode()
        with attacking({"": lambda exchange: exchange.send(moved)}) as server:
            said = f"redirects to {other.url}/x.token=.*; redirects are not followed, give that URL"
            with pytest.raises(EngineStartError, match=said) as caught:
                attach(server.url, adapter_for=lambda _: None)
            assert "abcdef" not in str(caught.value)
            with pytest.raises(MalformedAnswer, match=said):
                client_of(server).complete(REQUEST)
        assert other.exchanges == []


def refusing(*heads: bytes) -> tuple[Script, list[Exchange]]:
    """Return a script that refuses one request with each of these heads and then answers, and the list of refused
    requests.
    """
    left, refused = list(heads), list[Exchange]()

    def play(exchange: Exchange) -> None:
        if left:
            refused.append(exchange)
            exchange.send(b"HTTP/1.1 " + left.pop(0) + b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        else:
            stream(*(event(token_ids=[token]) for token in COLD))(exchange)

    return play, refused


def test_a_busy_server_is_waited_for_and_the_answer_says_so() -> None:
    """A refusal before any processing leaves the cache unchanged, so the request is sent again and the history
    records it.
    """
    script, refused = refusing(b"429 Busy\r\nRetry-After: 7", b"503 Busy\r\nRetry-After: 2", b"429 Busy")
    slept, counts = list[float](), list[int]()
    time = RequestTime(60, clock=lambda: sum(slept), sleep=slept.append)
    with attacking({COMPLETIONS: script}) as server:
        got = client_of(server, time).complete(REQUEST, counts.append)
    assert [token.id for token in got.tokens] == COLD
    assert (got.busy, len(refused), len(server.received(COMPLETIONS))) == (3, 3, 4)
    assert sum(slept) == pytest.approx(7 + 2 + 4)
    assert counts.count(0) == len(slept)  # a request that waits is not stalled
    assert answered(outcome(0, PROMPT), got).busy == 3


@pytest.mark.parametrize(
    "head",
    [b"429 Busy\r\nRetry-After: 1000000000", b"503 Busy\r\nRetry-After: 61", b"429 Busy\r\nRetry-After: " + b"9" * 400],
)
def test_a_server_that_is_busy_for_longer_than_the_run_gets_no_second_request(head: bytes) -> None:
    """A server that is busy for longer than the run ends it with an error: nothing is known about the engine."""
    script, _ = refusing(head)
    slept = list[float]()
    with attacking({COMPLETIONS: script}) as server:
        with pytest.raises(RequestOverdue, match=r"refused with HTTP \d+ 1 times.* the server is busy"):
            client_of(server, RequestTime(60, clock=lambda: 0.0, sleep=slept.append)).complete(REQUEST)
        assert len(server.received(COMPLETIONS)) == 1
    assert slept == []


def test_a_server_that_is_always_busy_is_abandoned_at_the_time_limit() -> None:
    """A server that stays busy is abandoned at the time limit, however short its Retry-After is."""
    busy_now = b"HTTP/1.1 429 Busy\r\nRetry-After: 0\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    slept = list[float]()
    time = RequestTime(1.0, clock=lambda: sum(slept), sleep=slept.append)
    with attacking({"": lambda exchange: exchange.send(busy_now)}) as server:
        with pytest.raises(RequestOverdue, match="the server is busy"):
            client_of(server, time).get("/metrics")
        assert len(server.exchanges) == pytest.approx(1.0 / busy.LEAST_WAIT_SECONDS, abs=2)


def test_an_unavailable_server_that_names_no_time_has_refused() -> None:
    """A 503 without Retry-After may have processed the request, so it is not sent again."""
    script, _ = refusing(b"503 Service Unavailable")
    with attacking({COMPLETIONS: script}) as server:
        with pytest.raises(RequestRefused, match="503"):
            client_of(server).complete(REQUEST)
        assert len(server.received(COMPLETIONS)) == 1


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, 1),
        ("5", 5),
        (" 5 ", 5),
        ("0", 0.1),
        ("-5", 1),
        ("1e9", 1),
        ("NaN", 1),
        ("soon", 1),
        ("", 1),
        ("٣", 1),
        ("5.5", 1),
    ],
)
def test_a_time_in_seconds_is_read(header: str | None, seconds: float) -> None:
    """An invalid number of seconds counts as no Retry-After."""
    assert busy.wait_seconds(header, 0) == seconds


def test_a_time_as_a_date_is_read() -> None:
    """A Retry-After date in the past counts as none."""
    now = datetime.now(UTC)
    assert 3000 < busy.wait_seconds(format_datetime(now + timedelta(hours=1), usegmt=True), 0) <= 3600
    assert busy.wait_seconds(format_datetime(now - timedelta(hours=1), usegmt=True), 0) == 1
    assert busy.wait_seconds("Wed, 99 Foo 99999 99:99:99 GMT", 2) == 4


# ---- Content


def choices(text: bytes) -> bytes:
    """Return an event with these choices."""
    return b'data: {"choices": [' + text + b"]}\n\n"


def count(text: bytes) -> bytes:
    """Return an event with this count of cached tokens."""
    return b'data: {"choices": [], "usage": {"prompt_tokens_details": {"cached_tokens": ' + text + b"}}}\n\n"


DEEP = 100_000
MALFORMED = {
    "a text as token": choices(b'{"token_ids": ["65"]}'),
    "a negative token": choices(b'{"token_ids": [-1]}'),
    "a token beyond 64 bits": choices(b'{"token_ids": [%d]}' % 2**70),
    "a fraction": choices(b'{"token_ids": [1.5]}'),
    "a flag": choices(b'{"token_ids": [true]}'),
    "NaN": choices(b'{"token_ids": [65], "logprobs": {"token_logprobs": [NaN]}}'),
    "an infinite score": choices(b'{"token_ids": [65], "logprobs": {"token_logprobs": [1e400]}}'),
    "deep": b"data: " + b"[" * DEEP + b"\n\n",
    "deep objects": b'data: {"choices": ' + b'{"a":' * DEEP + b"\n\n",
    "deep where nobody looks": b'data: {"x": ' + b"[" * DEEP + b"]" * DEEP + b', "choices": []}\n\n',
    "no UTF-8": b"data: \xff\xfe\n\n",
    "a negative index": choices(b'{"index": -1, "token_ids": [65]}'),
    "a wrong index": choices(b'{"index": 1, "token_ids": [65]}'),
    "many choices": choices(b",".join(b'{"index": %d}' % i for i in range(DEEP))),
    "a negative count": count(b"-5"),
    "a huge count": count(b"1e18"),
    "a count as text": count(b'"5"'),
    "no list": b'data: {"choices": {}}\n\n',
    "null": b"data: null\n\n",
}


@pytest.mark.parametrize("said", MALFORMED.values(), ids=MALFORMED)
def test_an_answer_with_content_that_no_engine_may_send_is_malformed(said: bytes) -> None:
    """A malformed answer is an error: nothing is compared with it, and no requirement conforms by it."""
    with attacking({COMPLETIONS: stream(said)}) as server, pytest.raises(MalformedAnswer) as caught:
        client_of(server).complete(REQUEST)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


GOOD = b"".join(event(token_ids=[token], text="x") for token in COLD) + b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    "script",
    [
        lambda exchange: exchange.send(STREAM, *(GOOD[i : i + 1] for i in range(len(GOOD)))),
        lambda exchange: exchange.send(b"HTTP/1.0 200 OK\r\n\r\n" + GOOD),
        lambda exchange: exchange.send(STREAM + GOOD.replace(b"\n", b"\r\n")),
        lambda exchange: exchange.send(STREAM + b": comment\n\n" + GOOD.replace(b"data: ", b"id: 1\ndata:")),
        lambda exchange: exchange.send(STREAM + GOOD.removesuffix(b"\n\n")),
        lambda exchange: exchange.send(OK + b"Content-Length: %d\r\n\r\n" % len(GOOD) + GOOD),
    ],
    ids=["byte by byte", "HTTP/1.0", "CRLF", "fields", "no last line end", "with a length"],
)
def test_a_good_answer_in_an_unusual_form_is_read(script: Script) -> None:
    """A server may split and frame its events in any valid way."""
    with attacking({COMPLETIONS: script}) as server:
        got = client_of(server).complete(REQUEST)
    assert [token.id for token in got.tokens] == COLD


def test_a_request_after_a_broken_answer_gets_its_own(small: int) -> None:
    """Nothing of a broken answer stays on the connection for the next request."""
    broken = [OK + b"Content-Length: 2\r\n\r\n{}" + b"HTTP/1.1 200 OK\r\n\r\nforged", JSON + bytes(2 * small)]

    def play(exchange: Exchange) -> None:
        if broken:
            exchange.send(broken.pop(0))
        else:
            stream(GOOD)(exchange)

    with attacking({COMPLETIONS: play}) as server:
        client = client_of(server)
        for _ in range(2):
            with pytest.raises(EngineError):
                client.complete(REQUEST)
        assert [token.id for token in client.complete(REQUEST).tokens] == COLD


VERSIONS = ('{"version": 5}', "[" * DEEP, '{"version": NaN}', "\x00", json.dumps({"version": "9" * DEEP}))
ROUTES = (
    "[" * DEEP,
    '{"paths": {"/x": ' + "[" * DEEP,
    '{"paths": []}',
    '{"paths": {"/reset_prefix_cache": {"post": {"parameters": 5}}}}',
)
METRICS = (
    'vllm:cache_config_info{block_size="²",num_gpu_blocks="' + "9" * 5000 + '"} 1\n',
    'vllm:cache_config_info{block_size="0",num_gpu_blocks="-1"} 1\n',
    'vllm:cache_config_info{block_size="99999999",num_gpu_blocks="1"} 1\n',
    'vllm:cache_config_info{cache_dtype="' + "x" * DEEP + '"} 1\n',
)
ODD = [
    {
        path: page
        for path, page in zip(("/version", "/openapi.json", "/metrics"), pages, strict=True)
        if page is not None
    }
    for pages in itertools.zip_longest(VERSIONS, ROUTES, METRICS)
]


@pytest.mark.parametrize("pages", ODD, ids=lambda pages: " ".join(page[:20] for page in pages.values()))
def test_a_page_with_odd_content_is_as_good_as_none(pages: dict[str, str]) -> None:
    """The capability is absent, and the report shows only the beginning of the page. One server has an odd page of
    each kind: they do not depend on one another.
    """
    with attacking({}, ServerBehaviour(bodies=pages)) as server:
        engine = attach(server.url, adapter_for=lambda _: None)
    assert len(engine.version or "") <= 103
    assert all(len(value) <= 210 for value in engine.config.values())
    assert list(of_shape(engine.shape)) == []
    assert (engine.shape.block_size or 16) <= 65536


@pytest.mark.parametrize(
    ("path", "page"),
    [
        ("/metrics", "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running NaN\n"),
        ("/metrics", "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running +Inf\n"),
        ("/metrics", 'vllm:num_requests_running{a="'),
        ("/v1/models", json.dumps({"data": [{"id": "m" * 5000}]})),
        ("/v1/models", json.dumps({"data": [{"id": ""}]})),
        ("/v1/models", '{"data": [{"id": "m", "max_model_len": -5}]}'),
        ("/v1/models", '{"data": ' + "[" * 100_000),
        ("/v1/completions", "data: " + "[" * 100_000 + "\n\n"),
    ],
)
def test_a_page_that_would_mislead_ends_the_setup_in_one_line(path: str, page: str) -> None:
    """The error names the request and shows the beginning of its answer."""
    with attacking({}, ServerBehaviour(bodies={path: page})) as server, pytest.raises(EngineStartError) as caught:
        attach(server.url, adapter_for=lambda _: None)
    assert f"{path} was answered with HTTP 200 and " in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_prompt_scores_are_read_within_the_same_limits(small: int) -> None:
    """Prompt scores are not streamed, and the limits hold for them too."""
    with attacking({COMPLETIONS: endless_script(JSON, parts=(BLOCK,))}) as server:
        scored = CompletionRequest(
            model=MODEL, prompt=PROMPT, max_tokens=1, options=ResponseOptions(prompt_logprobs=True)
        )
        with pytest.raises(MalformedAnswer, match="more than 1 MiB"):
            client_of(server).complete(scored)
        assert server.exchanges[0].sent < small + SLACK
