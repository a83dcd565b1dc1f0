"""A server's requests run side by side, each at its moment, while the caller looks after them from its own thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from support.fake_reply import MODEL, Counts, ServerBehaviour, answer, rendered
from support.fake_server import FakeServer, serving

from coldproof.adapters.common import concurrent as serving_module
from coldproof.adapters.common.redact import KEY_VARIABLE
from coldproof.adapters.protocol.engine import RequestRefused, Served
from coldproof.adapters.protocol.metrics import Metrics, increase
from coldproof.adapters.protocol.requests import Abort, Arrival, Completion, CompletionRequest, Message, Stage
from coldproof.adapters.protocol.shape import EngineShape
from coldproof.adapters.server.client import HttpClient
from coldproof.adapters.server.engine import ServerEngine
from coldproof.adapters.server.probes import ProbeResult

SHAPE = EngineShape(block_size=16, pool_blocks=99, max_model_tokens=2048, adapter_slots=4, prefix_caching=True)


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The developer's own key stays out of these tests."""
    monkeypatch.delenv(KEY_VARIABLE, raising=False)


@pytest.fixture
def fake(request: pytest.FixtureRequest) -> Iterator[FakeServer]:
    """A stand-in server, with the manners that the test is parametrized with."""
    with serving(getattr(request, "param", None)) as server:
        yield server


def engine(fake: FakeServer, *, null_is_miss: bool = False) -> ServerEngine:
    """The engine behind a stand-in, as if it had been probed."""
    probed = ProbeResult(
        version="1", base_model=MODEL, shape=SHAPE, capabilities={}, cache_config={}, null_is_miss=null_is_miss
    )
    return ServerEngine(name="x", client=HttpClient(fake.url, alive=lambda: True), probed=probed, config={})


def prompt(number: int) -> tuple[int, ...]:
    """A prompt of forty tokens, unlike the others from its first token on."""
    return tuple(range(40 + number, 80 + number))


def arrival(number: int, *, after_ms: int = 0, **changes: Any) -> Arrival:
    """Request `number`, sent so late."""
    facts: dict[str, Any] = {"model": MODEL, "prompt": prompt(number), "max_tokens": 4}
    return Arrival(CompletionRequest(**{**facts, **changes}), after_ms)


def served(
    by: ServerEngine, *arrivals: Arrival, on_token: Any = lambda *_: None, between: Callable[[], None] = lambda: None
) -> list[Served]:
    """What becomes of these requests."""
    return by.serve(arrivals, on_token, between)


def ids(one: Served) -> list[int]:
    """An answer's tokens."""
    assert isinstance(one.result, Completion)
    return [token.id for token in one.result.tokens]


def test_each_request_has_its_own_answer_in_order(fake: FakeServer) -> None:
    """However many there are."""
    assert [ids(one) for one in served(engine(fake), *map(arrival, range(12)))] == [
        answer(MODEL, prompt(i), 4) for i in range(12)
    ]


def test_requests_run_side_by_side() -> None:
    """The server answers none of six before it has them all."""
    with serving(ServerBehaviour(before=threading.Barrier(6).wait)) as fake:
        results = served(engine(fake), *map(arrival, range(6)))
    assert max(one.sent for one in results) < min(one.finished for one in results)


@pytest.mark.parametrize("fake", [ServerBehaviour(delay=0.1)], indirect=True)
def test_a_request_is_sent_at_its_offset(fake: FakeServer) -> None:
    """From the burst's beginning, by the engine's clock."""
    by = engine(fake)
    began = by.clock()
    late, _ = served(by, arrival(0, after_ms=250), arrival(1))
    assert late.sent - began >= 0.25
    assert late.finished >= late.sent + 0.1


def test_tokens_are_counted_aloud_for_each_request(fake: FakeServer) -> None:
    """By its number, as they come."""
    told: list[tuple[int, int]] = []
    served(engine(fake), arrival(0), arrival(1), on_token=lambda number, count: told.append((number, count)))
    for number in (0, 1):
        counts = [count for who, count in told if who == number]
        assert sorted(set(counts)) == [1, 2, 3, 4]
        assert counts == sorted(counts)


def test_the_caller_looks_up_again_and_again_from_its_own_thread() -> None:
    """Also while no token comes: there it sees a stall, or changes an adapter."""
    looks: list[int] = []
    often = threading.Event()

    def look() -> None:
        looks.append(threading.get_ident())
        if len(looks) == 5:
            often.set()

    with serving(ServerBehaviour(before=often.wait)) as fake:
        served(engine(fake), arrival(0), between=look)
    assert set(looks) == {threading.get_ident()}


def test_a_token_is_followed_by_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change after so many tokens is made while the request still runs, however seldom the caller looks up else."""
    monkeypatch.setattr(serving_module, "POLL_SECONDS", threading.TIMEOUT_MAX)
    seen: list[int] = []
    looked = threading.Event()

    def look() -> None:
        if seen:
            looked.set()

    with serving(ServerBehaviour(after=lambda number: looked.wait() if number == 1 else None)) as fake:
        served(engine(fake), arrival(0, max_tokens=8), on_token=lambda _, count: seen.append(count), between=look)
    assert max(seen) == 8


@pytest.mark.parametrize("fake", [ServerBehaviour(refuses=("priority",))], indirect=True)
def test_a_refusal_is_the_result_of_its_request_alone(fake: FakeServer) -> None:
    """With the time when it came."""
    refused, fine = served(engine(fake), arrival(0, priority=1), arrival(1))
    assert isinstance(refused.result, RequestRefused)
    assert refused.result.status == 400
    assert refused.finished >= refused.sent
    assert ids(fine) == answer(MODEL, prompt(1), 4)


@pytest.mark.parametrize("fake", [ServerBehaviour(delay=0.2)], indirect=True)
def test_what_breaks_between_is_raised(fake: FakeServer) -> None:
    """It is the harness's, and nobody waits for the requests."""

    def breaks() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        served(engine(fake), arrival(0), between=breaks)


@pytest.mark.parametrize("fake", [ServerBehaviour(counts=Counts.NULL_ON_MISS)], indirect=True)
@pytest.mark.parametrize(("null_is_miss", "count"), [(True, 0), (False, None)])
def test_null_is_a_miss_side_by_side_too(fake: FakeServer, null_is_miss: bool, count: int | None) -> None:
    """Where the probe saw that; whoever hung up was never told, which is no miss."""
    by = engine(fake, null_is_miss=null_is_miss)
    whole, cut = (one.result for one in served(by, arrival(0), arrival(1, abort=Abort(after_tokens=1))))
    assert isinstance(whole, Completion)
    assert isinstance(cut, Completion)
    assert (whole.cached_tokens, cut.cached_tokens, cut.aborted) == (count, None, Stage.DECODE)


def test_rendering_is_the_servers(fake: FakeServer) -> None:
    """For its base model, and nothing is generated."""
    messages = (Message("system", "Be brief."), Message("user", "Hello."))
    assert engine(fake).render(messages) == rendered([{"role": m.role, "content": m.content} for m in messages])
    (asked,) = fake.seen
    assert (asked.line, asked.body["model"]) == ("POST /tokenize", MODEL)


@pytest.mark.parametrize("fake", [ServerBehaviour(chats=False)], indirect=True)
def test_a_server_that_does_not_render_refuses(fake: FakeServer) -> None:
    """Guessing its template would be testing another prompt."""
    with pytest.raises(RequestRefused, match="404"):
        engine(fake).render((Message("user", "Hello."),))


def test_counters_count_from_a_beginning_and_gauges_do_not() -> None:
    """Neither does anything that is not known at both ends."""
    start = Metrics(queried_tokens=100, hit_tokens=40, preemptions=None, running=3, waiting=1, pool_usage=0.5)
    now = Metrics(queried_tokens=130, hit_tokens=40, preemptions=7, running=1, waiting=None, pool_usage=0.25)
    assert now.since(start) == Metrics(
        queried_tokens=30, hit_tokens=0, preemptions=None, running=1, waiting=None, pool_usage=0.25
    )
    assert (increase(None, 3), increase(3, None), increase(3, 5)) == (None, None, 2)


def test_the_caller_looks_once_where_all_is_answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quick engine may be through before the caller's thread has its turn again; what is looked at is owed all the
    same."""

    class AtOnce(ThreadPoolExecutor):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            done: Future[Any] = Future()
            done.set_result(fn(*args, **kwargs))
            return done

    monkeypatch.setattr(serving_module, "ThreadPoolExecutor", AtOnce)
    looks: list[int] = []
    said = Completion(tokens=(), finish_reason="length", cached_tokens=0)
    served = serving_module.serve_in_threads(
        [Arrival(CompletionRequest(model="m", prompt=(1,), max_tokens=1))],
        lambda *_: said,
        time.monotonic,
        lambda *_: None,
        lambda: looks.append(1),
    )
    assert [one.result for one in served] == [said]
    assert looks == [1]
