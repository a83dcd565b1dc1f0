"""The client reports only what the server sent: missing is not zero, and a generation is sent exactly once."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import create_autospec

import msgspec
import pytest
import tenacity
from support.fake_reply import METRICS, MODEL, Counts, Fault, ServerBehaviour, answer
from support.fake_server import FakeServer, serving
from support.waiting import until

from coldproof.adapters.common.process import EngineProcess
from coldproof.adapters.common.redact import KEY_VARIABLE
from coldproof.adapters.protocol.endpoints import Endpoint
from coldproof.adapters.protocol.engine import EngineDied, EngineError, EngineSilent, MalformedAnswer, RequestRefused
from coldproof.adapters.protocol.metrics import Metrics
from coldproof.adapters.protocol.requests import Completion, CompletionRequest, Message, ResponseOptions
from coldproof.adapters.protocol.resets import ResetScope
from coldproof.adapters.server import client as client_module
from coldproof.adapters.server.client import READ_TIMEOUT_SECONDS, HttpClient
from coldproof.adapters.server.engine import ServerEngine
from coldproof.adapters.server.probes import probe
from coldproof.adapters.server.served_model import served_model
from coldproof.adapters.server.transport import MeteredAdapter
from coldproof.adapters.server.vllm_metrics import GAUGES_PATH, METRICS_PATH

PROMPT = tuple(range(40, 80))
SECRET = "s3cr3t-key"
REQUEST = CompletionRequest(model=MODEL, prompt=PROMPT, max_tokens=4)


@pytest.fixture
def without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check only once whether the engine has ended, instead of for two seconds, and retry at once."""
    monkeypatch.setattr(HttpClient, "wait_dead", lambda self, seconds: not self.alive())
    monkeypatch.setattr(HttpClient._get.retry, "wait", tenacity.wait_none())


def live(fake: FakeServer, read_timeout: float = READ_TIMEOUT_SECONDS) -> HttpClient:
    """Return a client for an engine whose process runs."""
    return HttpClient(fake.url, alive=lambda: True, read_timeout=read_timeout)


def dead(fake: FakeServer) -> HttpClient:
    """Return a client for an engine whose process has ended, so that it does not wait for the process."""
    silent = fake.behaviour.fault in (Fault.SILENT, Fault.STALLS)
    return HttpClient(fake.url, alive=lambda: False, read_timeout=0.3 if silent else READ_TIMEOUT_SECONDS)


def faulty(*faults: Fault) -> pytest.MarkDecorator:
    """Run the test against a server with each of these faults."""
    return pytest.mark.parametrize(
        "fake", [ServerBehaviour(fault=fault) for fault in faults], indirect=True, ids=[fault.name for fault in faults]
    )


def test_an_idle_connection_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server may close an idle connection at the moment of the next request."""
    client = HttpClient("http://127.0.0.1:1", alive=lambda: True)
    monkeypatch.setattr(client_module, "IDLE_SECONDS", 1e9)
    first = client.session()
    assert client.session() is first
    monkeypatch.setattr(client_module, "IDLE_SECONDS", -1.0)
    assert client.session() is not first


def test_the_connections_of_a_thread_end_with_it(fake: FakeServer) -> None:
    """A run has a thread per request, and many machines allow a process 1,024 open files."""
    client, connections = HttpClient(fake.url, alive=lambda: True), list[Any]()

    def ask() -> None:
        client.get("/version")
        connections.append(client.session().get_adapter(fake.url).connections.latest)
        assert connections[-1].sock is not None

    for _ in range(3):
        with ThreadPoolExecutor(1) as thread:
            thread.submit(ask).result()
    gc.collect()
    assert [connection.sock for connection in connections] == [None, None, None]


def test_an_answer_is_what_the_server_streamed(fake: FakeServer) -> None:
    """Tokens are in order, reported as they arrive, and followed by the finish reason."""
    counts: list[int] = []
    got = live(fake).complete(REQUEST, counts.append)
    assert [token.id for token in got.tokens] == answer(MODEL, PROMPT, 4)
    assert got.finish_reason == "length"
    assert sorted(set(counts)) == [1, 2, 3, 4]
    assert [t.at for t in got.tokens] == sorted(t.at for t in got.tokens)


def test_the_rank_of_a_request_is_a_header_on_every_endpoint(fake: FakeServer) -> None:
    """A request without a rank has no header, and the server balances it."""
    for rank, endpoint in ((None, None), (1, None), (0, None), (1, Endpoint.GENERATE)):
        with contextlib.suppress(EngineError):  # the endpoint may be closed here
            live(fake).complete(
                CompletionRequest(model=MODEL, prompt=PROMPT, max_tokens=4, rank=rank, endpoint=endpoint)
            )
    assert [seen.rank for seen in fake.seen] == [None, "1", "0", "1"]


def test_cached_counts_are_the_servers(fake: FakeServer) -> None:
    """The first request hits nothing, the second one two whole blocks."""
    assert [live(fake).complete(REQUEST).cached_tokens for _ in range(2)] == [0, 32]


@pytest.mark.parametrize(
    ("fake", "counts"),
    [(ServerBehaviour(counts=Counts.NULL_ON_MISS), [0, 32]), (ServerBehaviour(counts=Counts.NEVER), [None, None])],
    indirect=["fake"],
)
def test_null_is_a_miss_only_where_it_was_seen_to_be_one(fake: FakeServer, counts: list[int | None]) -> None:
    """The client returns None for null. The engine reads null as 0 once the probe saw a count for a hit."""
    client = live(fake)
    assert client.complete(REQUEST).cached_tokens is None
    fake.cached.clear()
    probed = probe(client, spawned=False, adapter_path=None)
    engine = ServerEngine(name="x", client=client, probed=probed, config={})
    assert [engine.complete(REQUEST).cached_tokens for _ in range(2)] == counts


@pytest.mark.parametrize(
    ("finish_reason", "stopped", "is_answer"),
    [("abort", True, False), (None, True, False), ("length", True, True), ("abort", False, True)],
)
def test_a_server_that_is_stopped_answers_nothing_more(
    fake: FakeServer, finish_reason: str | None, stopped: bool, is_answer: bool
) -> None:
    """A stopped vLLM ends its streams normally. A partial answer is then an error, a complete one is valid."""
    client = live(fake)
    probed = probe(client, spawned=True, adapter_path=None)
    process = create_autospec(EngineProcess, instance=True)
    engine = ServerEngine(name="x", client=client, probed=probed, config={}, process=process)
    got = Completion(tokens=(), finish_reason=finish_reason, cached_tokens=0)

    def in_the_midst(*_: object) -> Completion:
        if stopped:
            engine.stop()
        return got

    client.complete = in_the_midst  # type: ignore[method-assign]
    with contextlib.nullcontext() if is_answer else pytest.raises(EngineDied, match="stopped"):
        assert engine.complete(REQUEST) == got


@pytest.mark.parametrize("fake", [ServerBehaviour(token_ids=False)], indirect=True)
def test_text_is_not_taken_for_token_ids(fake: FakeServer) -> None:
    """A server that returns only text has returned no token ids."""
    assert live(fake).complete(REQUEST).tokens == ()


@faulty(Fault.REFUSES)
def test_a_refusal_is_an_answer(fake: FakeServer) -> None:
    """The exception has the status and the body of the refusal."""
    with pytest.raises(RequestRefused, match=r"HTTP 400.*must be text") as caught:
        live(fake).complete(REQUEST)
    assert caught.value.status == 400
    assert "prompt must be text" in caught.value.body


@faulty(Fault.SILENT, Fault.STALLS)
def test_silence_of_a_live_engine_is_reported_as_silence(fake: FakeServer) -> None:
    """Silence before or after the first token raises EngineSilent at the read timeout."""
    with pytest.raises(EngineSilent, match="no answer from /v1/completions"):
        live(fake, read_timeout=0.3).complete(REQUEST)


@faulty(Fault.SILENT, Fault.STALLS, Fault.BREAKS, Fault.SPEECHLESS, Fault.ENDS_EARLY, Fault.ERROR_EVENT)
def test_any_remains_of_a_crashed_engine_are_a_crash(fake: FakeServer) -> None:
    """A partial answer of an engine whose process has ended is an EngineDied."""
    with pytest.raises(EngineDied):
        dead(fake).complete(REQUEST)


@pytest.mark.usefixtures("without_waiting")
@faulty(Fault.BREAKS, Fault.ENDS_EARLY)
def test_a_stream_without_its_end_is_never_an_answer(fake: FakeServer) -> None:
    """Even if the process runs, tokens before the break may be any prefix of the answer."""
    with pytest.raises(EngineDied, match=r"cannot connect to http://127|an answer ended early: POST /v1/completions"):
        live(fake).complete(REQUEST)


@faulty(Fault.BREAKS)
def test_a_socket_may_break_a_moment_before_the_process_ends(fake: FakeServer) -> None:
    """A process that is not reaped yet when the socket closes does not hide that the engine has crashed."""
    states = iter([True, True])
    with pytest.raises(EngineDied, match="process has ended"):
        HttpClient(fake.url, alive=lambda: next(states, False)).complete(REQUEST)


@pytest.mark.usefixtures("without_waiting")
@faulty(Fault.ERROR_EVENT)
def test_an_error_in_the_stream_of_a_live_engine_is_a_refusal(
    fake: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status was 200, so the error event at the end decides, and its text is shown."""
    monkeypatch.setattr(client_module, "DEAD_SECONDS", 0.1)
    with pytest.raises(RequestRefused, match="EngineCore encountered"):
        live(fake).complete(REQUEST)


STREAM = "a stream of server-sent events that ends with data: [DONE]"
EVENT = "a JSON object whose choices have token_ids"


@pytest.mark.usefixtures("without_waiting")
@pytest.mark.parametrize(
    ("body", "came", "expected"),
    [
        ('{"choices": [{"token_ids": "no"}]}', """'{"choices": [{"token_ids": "no"}]}\\n'""", STREAM),
        ('data: {"choices": [{"token_ids": "no"}]}\n\n', """'{"choices": [{"token_ids": "no"}]}'""", EVENT),
        ("data: \x1b[31m\n\ndata: [DONE]\n\n", r"'\x1b[31m'", EVENT),
        ("<html>\n<body>", r"'<html>\n<body>\n'", STREAM),
        ("x" * 9999, f"'{'x' * 200}...'", STREAM),
        ("", "an empty body", STREAM),
        ("data: [", "'['", EVENT),
    ],
    ids=["no stream", "no tokens", "no JSON", "a page", "endless", "empty", "cut off"],
)
def test_an_answer_of_another_form_is_described_in_one_line(body: str, came: str, expected: str) -> None:
    """The error says what was sent, received and expected. Such a server is not reported as unreachable."""
    with serving(ServerBehaviour(bodies={"/v1/completions": body})) as fake, pytest.raises(MalformedAnswer) as caught:
        live(fake).complete(REQUEST)
    assert str(caught.value) == f"POST /v1/completions was answered with HTTP 200 and {came}; expected {expected}"


@pytest.mark.usefixtures("without_waiting")
def test_a_whole_response_of_another_form_is_described_too() -> None:
    """Prompt scores are not streamed, and their response is checked in the same way."""
    request = msgspec.structs.replace(REQUEST, options=ResponseOptions(prompt_logprobs=True))
    with serving(ServerBehaviour(bodies={"/v1/completions": "[3]"})) as fake:
        with pytest.raises(MalformedAnswer, match=rf"POST /v1/completions .* '\[3\]'; expected {EVENT}$"):
            live(fake).complete(request)
        with pytest.raises(EngineDied):
            dead(fake).complete(request)


@pytest.mark.parametrize(
    ("path", "body", "read"),
    [
        ("/tokenize", '{"tokens": "many"}', lambda client: client.render(MODEL, (Message("user", "hi"),))),
        ("/metrics", "vllm:num_requests_running{ 3", lambda client: client.metrics()),
        ("/v1/models", "<html>", served_model),
    ],
    ids=["tokenize", "metrics", "models"],
)
def test_any_page_of_another_form_is_described(path: str, body: str, read: Callable[[HttpClient], object]) -> None:
    """The error has the path and the beginning of the body."""
    with serving(ServerBehaviour(bodies={path: body})) as fake, pytest.raises(MalformedAnswer) as caught:
        read(live(fake))
    assert f"{path} was answered with HTTP 200 and '{body}'; expected " in str(caught.value)


def test_secrets_that_a_server_repeats_are_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The API key is removed from the error."""
    monkeypatch.setenv(KEY_VARIABLE, SECRET)
    with (
        serving(ServerBehaviour(bodies={"/tokenize": f"You sent {SECRET}"})) as fake,
        pytest.raises(MalformedAnswer) as caught,
    ):
        live(fake).render(MODEL, (Message("user", "hi"),))
    assert "You sent ***" in str(caught.value)


def test_a_refusal_is_one_line() -> None:
    """Line breaks and control characters of the body are not printed."""
    assert "\n" not in str(RequestRefused(500, "<html>\n\x1b[31m"))


@faulty(*Fault)
def test_a_generation_is_sent_exactly_once(fake: FakeServer) -> None:
    """A second generation would hit the cache that the first one filled, so it is never retried."""
    try:
        dead(fake).complete(REQUEST)
    except EngineError:
        assert fake.behaviour.fault is not Fault.NONE
    until(lambda: fake.seen)  # on a busy machine the client may give up before the request is read
    assert len(fake.received("POST /v1/completions")) == 1


@pytest.mark.usefixtures("without_waiting")
@pytest.mark.parametrize("fake", [ServerBehaviour(dropped_gets=2)], indirect=True)
def test_a_scrape_survives_two_broken_sockets(fake: FakeServer) -> None:
    """A GET changes nothing in the engine, so it may be retried."""
    assert live(fake).scrape()
    assert len(fake.received("GET /metrics")) == 3


@pytest.mark.usefixtures("without_waiting")
@pytest.mark.parametrize("fake", [ServerBehaviour(dropped_gets=99)], indirect=True)
def test_retries_come_to_an_end(fake: FakeServer) -> None:
    """An engine that never answers is reported as EngineDied."""
    with pytest.raises(EngineDied):
        live(fake).scrape()
    assert len(fake.received("GET /metrics")) == 3


def test_nothing_is_sent_to_an_ended_process(fake: FakeServer) -> None:
    """Another server may have taken the port of the ended process."""
    with pytest.raises(EngineDied, match="has ended"):
        dead(fake).metrics()
    assert fake.seen == []


def test_a_server_that_cannot_select_metrics_sends_all_from_then_on(fake: FakeServer) -> None:
    """The first request names the metrics. If the server ignores that, later ones request all of them."""
    client = live(fake)
    assert [client.metrics().queried_tokens for _ in range(3)] == [42, 42, 42]
    first, *others = fake.seen
    assert "name%5B%5D=vllm%3Aprefix_cache_queries_total" in first.line
    assert [seen.line for seen in others] == [f"GET {METRICS_PATH}"] * 3


def test_metrics_are_summed_over_replicas_and_absent_ones_are_none(fake: FakeServer) -> None:
    """A value is 0 only if the engine reports 0, and the creation time of a counter is not counted."""
    metrics = live(fake).metrics()
    assert (metrics.queried_tokens, metrics.running) == (42, 0)
    assert (metrics.hit_tokens, metrics.external_hit_tokens) == (16, None)
    assert "external_prefix_cache_hits" not in METRICS


BUSY = "vllm:num_requests_running 2\nvllm:num_requests_waiting 1\n"


@pytest.mark.parametrize(
    ("fake", "requested"),
    [
        (ServerBehaviour(gauges=BUSY), [GAUGES_PATH] * 2),
        (ServerBehaviour(metrics=BUSY), [GAUGES_PATH, METRICS_PATH, METRICS_PATH]),
        (ServerBehaviour(metrics=BUSY, gauges="<html>Not here</html>"), [GAUGES_PATH, METRICS_PATH, METRICS_PATH]),
    ],
    indirect=["fake"],
    ids=["by name", "all or nothing", "something else there"],
)
def test_gauges_are_requested_by_name_where_that_works(fake: FakeServer, requested: list[str]) -> None:
    """Requesting gauges by name is several times as fast. A server that does not support it is tried only once."""
    client = live(fake)
    for _ in range(2):
        reported = client.gauges()
        assert (reported.running, reported.waiting) == (2, 1)
    assert [one.line for one in fake.seen] == [f"GET {path}" for path in requested]


@pytest.mark.parametrize("fake", [ServerBehaviour(metrics=None)], indirect=True)
def test_a_server_without_metrics_has_none(fake: FakeServer) -> None:
    """Every field is unknown."""
    assert live(fake).metrics() == Metrics()
    assert Metrics().hit_tokens is None


@pytest.mark.parametrize(
    ("fake", "done"),
    [
        (ServerBehaviour(), True),
        (ServerBehaviour(reset='{"success": false}'), False),
        (ServerBehaviour(reset=""), False),
        (ServerBehaviour(reset="true"), False),
    ],
    indirect=["fake"],
    ids=["success", "failure", "empty 200", "bare true"],
)
def test_a_reset_happened_only_if_the_server_confirms_it(fake: FakeServer, done: bool) -> None:
    """HTTP 200 alone does not show that the cache was reset."""
    assert live(fake).reset()[0] is done


def test_a_reset_of_more_has_vllms_parameters(fake: FakeServer) -> None:
    """A plain reset has no parameters, so that other servers understand it."""
    client = live(fake)
    assert client.reset((ResetScope.RUNNING, ResetScope.SECOND_TIER))[0]
    assert client.reset()[0]
    assert [seen.line for seen in fake.seen if "reset" in seen.line] == [
        "POST /reset_prefix_cache?reset_running_requests=true&reset_external=true",
        "POST /reset_prefix_cache",
    ]


@pytest.mark.parametrize("fake", [ServerBehaviour(reset=None)], indirect=True)
def test_a_missing_reset_is_a_refusal(fake: FakeServer) -> None:
    """A missing route is a refusal, not a reset that failed."""
    with pytest.raises(RequestRefused, match="404"):
        live(fake).reset()


def test_the_key_is_sent_and_shown_nowhere(fake: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key is in the header of every request, and in no message."""
    monkeypatch.setenv(KEY_VARIABLE, SECRET)
    client = live(fake)
    client.complete(REQUEST)
    client.metrics()
    assert {seen.authorization for seen in fake.seen} == {f"Bearer {SECRET}"}
    with pytest.raises(RequestRefused) as caught:
        client.post("/no/such/route")
    assert SECRET not in f"{caught.value} {caught.value.body} {client.printable_url}"


def test_without_a_key_no_header_is_sent(fake: FakeServer) -> None:
    """An empty bearer token is not the same as no header."""
    live(fake).scrape()
    assert [seen.authorization for seen in fake.seen] == [None]


def test_a_password_in_the_url_is_not_printed(fake: FakeServer) -> None:
    """Neither the address nor an error contains the password."""
    client = HttpClient("http://ann:hunter2@127.0.0.1:9/base/v1/", alive=lambda: False)
    assert client.printable_url == "http://127.0.0.1:9/base"
    with pytest.raises(EngineDied) as caught:
        client.complete(REQUEST)
    assert "hunter2" not in str(caught.value)


def test_proxies_and_netrc_are_ignored(fake: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy from the developer's shell would answer instead of the engine."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert live(fake).metrics().queried_tokens == 42


def test_many_threads_may_send_requests_at_once(fake: FakeServer) -> None:
    """Each thread gets the answer to its own prompt."""
    client = live(fake)

    def ask(first: int) -> list[int]:
        got = client.complete(CompletionRequest(model=MODEL, prompt=(first, 2, 3), max_tokens=5))
        return [token.id for token in got.tokens]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(16))) == [answer(MODEL, (i, 2, 3), 5) for i in range(16)]


def test_the_connections_of_a_client_end_with_it() -> None:
    """A process with hundreds of clients ran out of file descriptors."""
    with serving() as fake:
        client = HttpClient(fake.url, alive=lambda: True)
        client.get("/version")
        adapter = client.session().get_adapter(fake.url)
        assert isinstance(adapter, MeteredAdapter)
        sock = adapter.connections.latest.sock
        assert sock.fileno() >= 0
        del client, adapter
        gc.collect()
        assert sock.fileno() == -1
