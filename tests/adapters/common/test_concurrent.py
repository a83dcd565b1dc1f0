"""Requests to a server run side by side, each sent at its time, while the caller polls from its own thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from support.fake_reply import MODEL, Counts, ServerBehaviour, answer, rendered
from support.fake_server import FakeServer, serving

from coldproof.adapters.common import concurrent as serving_module
from coldproof.adapters.protocol.engine import RequestRefused, Served
from coldproof.adapters.protocol.metrics import Metrics, increase
from coldproof.adapters.protocol.requests import Abort, Arrival, Completion, CompletionRequest, Message, Stage
from coldproof.adapters.protocol.shape import EngineShape
from coldproof.adapters.server.client import HttpClient
from coldproof.adapters.server.engine import ServerEngine
from coldproof.adapters.server.probes import ProbeResult

SHAPE = EngineShape(block_size=16, pool_blocks=99, max_model_tokens=2048, adapter_slots=4, prefix_caching=True)


def engine(fake: FakeServer, *, null_is_miss: bool = False) -> ServerEngine:
    """Return the engine behind a stand-in, as if it had been probed."""
    probed = ProbeResult(
        version="1", base_model=MODEL, shape=SHAPE, capabilities={}, cache_config={}, null_is_miss=null_is_miss
    )
    return ServerEngine(name="x", client=HttpClient(fake.url, alive=lambda: True), probed=probed, config={})


def prompt(number: int) -> tuple[int, ...]:
    """Return a prompt of forty tokens that differs from the others from its first token on."""
    return tuple(range(40 + number, 80 + number))


def arrival(number: int, *, after_ms: int = 0, **changes: Any) -> Arrival:
    """Return request `number`, sent `after_ms` milliseconds after the burst begins."""
    facts: dict[str, Any] = {"model": MODEL, "prompt": prompt(number), "max_tokens": 4}
    return Arrival(CompletionRequest(**{**facts, **changes}), after_ms)


def served(
    by: ServerEngine, *arrivals: Arrival, on_token: Any = lambda *_: None, between: Callable[[], None] = lambda: None
) -> list[Served]:
    """Serve these requests and return their results."""
    return by.serve(arrivals, on_token, between)


def ids(one: Served) -> list[int]:
    """Return the tokens of an answer."""
    assert isinstance(one.result, Completion)
    return [token.id for token in one.result.tokens]


def test_each_request_has_its_own_answer_in_order(fake: FakeServer) -> None:
    """Answers are in the order of the requests, however many there are."""
    assert [ids(one) for one in served(engine(fake), *map(arrival, range(12)))] == [
        answer(MODEL, prompt(i), 4) for i in range(12)
    ]


def test_requests_run_side_by_side() -> None:
    """The server answers none of six requests before it has received all of them."""
    with serving(ServerBehaviour(before=threading.Barrier(6).wait)) as fake:
        results = served(engine(fake), *map(arrival, range(6)))
    assert max(one.sent for one in results) < min(one.finished for one in results)


@pytest.mark.parametrize("fake", [ServerBehaviour(delay=0.1)], indirect=True)
def test_a_request_is_sent_at_its_offset(fake: FakeServer) -> None:
    """Offsets count from the beginning of the burst, by the engine's clock."""
    by = engine(fake)
    began = by.clock()
    late, _ = served(by, arrival(0, after_ms=250), arrival(1))
    assert late.sent - began >= 0.25
    assert late.finished >= late.sent + 0.1


def test_token_counts_are_reported_for_each_request(fake: FakeServer) -> None:
    """The token counts of each request are reported with its number as they arrive."""
    reported: list[tuple[int, int]] = []
    served(engine(fake), arrival(0), arrival(1), on_token=lambda number, count: reported.append((number, count)))
    for number in (0, 1):
        counts = [count for who, count in reported if who == number]
        assert sorted(set(counts)) == [1, 2, 3, 4]
        assert counts == sorted(counts)


def test_the_caller_polls_from_its_own_thread() -> None:
    """The caller is also called while no token arrives, so that it can detect a stall or change an adapter."""
    polls: list[int] = []
    often = threading.Event()

    def poll() -> None:
        polls.append(threading.get_ident())
        if len(polls) == 5:
            often.set()

    with serving(ServerBehaviour(before=often.wait)) as fake:
        served(engine(fake), arrival(0), between=poll)
    assert set(polls) == {threading.get_ident()}


def test_a_token_is_followed_by_a_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that is due after a token happens while the request still runs, even if polls are otherwise rare."""
    monkeypatch.setattr(serving_module, "POLL_SECONDS", threading.TIMEOUT_MAX)
    seen: list[int] = []
    polled = threading.Event()

    def poll() -> None:
        if seen:
            polled.set()

    with serving(ServerBehaviour(after=lambda number: polled.wait() if number == 1 else None)) as fake:
        served(engine(fake), arrival(0, max_tokens=8), on_token=lambda _, count: seen.append(count), between=poll)
    assert max(seen) == 8


@pytest.mark.parametrize("fake", [ServerBehaviour(refuses=("priority",))], indirect=True)
def test_a_refusal_is_the_result_of_its_request_alone(fake: FakeServer) -> None:
    """The refused request has the time of the refusal, and the request beside it is answered."""
    refused, fine = served(engine(fake), arrival(0, priority=1), arrival(1))
    assert isinstance(refused.result, RequestRefused)
    assert refused.result.status == 400
    assert refused.finished >= refused.sent
    assert ids(fine) == answer(MODEL, prompt(1), 4)


@pytest.mark.parametrize("fake", [ServerBehaviour(delay=0.2)], indirect=True)
def test_an_exception_of_the_caller_is_raised(fake: FakeServer) -> None:
    """An exception of the harness is raised without waiting for the requests."""

    def breaks() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        served(engine(fake), arrival(0), between=breaks)


@pytest.mark.parametrize("fake", [ServerBehaviour(counts=Counts.NULL_ON_MISS)], indirect=True)
@pytest.mark.parametrize(("null_is_miss", "count"), [(True, 0), (False, None)])
def test_null_is_a_miss_side_by_side_too(fake: FakeServer, null_is_miss: bool, count: int | None) -> None:
    """null is a miss where the probe saw that. A client that disconnects gets no count, which is not a miss."""
    by = engine(fake, null_is_miss=null_is_miss)
    whole, cut = (one.result for one in served(by, arrival(0), arrival(1, abort=Abort(after_tokens=1))))
    assert isinstance(whole, Completion)
    assert isinstance(cut, Completion)
    assert (whole.cached_tokens, cut.cached_tokens, cut.aborted) == (count, None, Stage.DECODE)


def test_rendering_is_the_servers(fake: FakeServer) -> None:
    """The chat template is applied by the server for its base model, and nothing is generated."""
    messages = (Message("system", "Be brief."), Message("user", "Hello."))
    assert engine(fake).render(messages) == rendered([{"role": m.role, "content": m.content} for m in messages])
    (sent,) = fake.seen
    assert (sent.line, sent.body["model"]) == ("POST /tokenize", MODEL)


@pytest.mark.parametrize("fake", [ServerBehaviour(chats=False)], indirect=True)
def test_a_server_that_does_not_render_refuses(fake: FakeServer) -> None:
    """A guessed chat template would test another prompt, so the request is refused."""
    with pytest.raises(RequestRefused, match="404"):
        engine(fake).render((Message("user", "Hello."),))


def test_counters_count_from_a_beginning_and_gauges_do_not() -> None:
    """A counter that is missing at either end has no increase, and gauges keep their last value."""
    start = Metrics(queried_tokens=100, hit_tokens=40, preemptions=None, running=3, waiting=1, pool_usage=0.5)
    now = Metrics(queried_tokens=130, hit_tokens=40, preemptions=7, running=1, waiting=None, pool_usage=0.25)
    assert now.since(start) == Metrics(
        queried_tokens=30, hit_tokens=0, preemptions=None, running=1, waiting=None, pool_usage=0.25
    )
    assert (increase(None, 3), increase(3, None), increase(3, 5)) == (None, None, 2)


def test_the_caller_polls_once_where_all_is_answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller is called once even if the engine answers everything before the caller's thread runs again."""

    class AtOnce(ThreadPoolExecutor):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            done: Future[Any] = Future()
            done.set_result(fn(*args, **kwargs))
            return done

    monkeypatch.setattr(serving_module, "ThreadPoolExecutor", AtOnce)
    polls: list[int] = []
    said = Completion(tokens=(), finish_reason="length", cached_tokens=0)
    served = serving_module.serve_in_threads(
        [Arrival(CompletionRequest(model="m", prompt=(1,), max_tokens=1))],
        lambda *_: said,
        time.monotonic,
        lambda *_: None,
        lambda: polls.append(1),
    )
    assert [one.result for one in served] == [said]
    assert polls == [1]
