"""What adapters return is checked, and a violation is described in English, so third-party adapters can be trusted."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.protocol.checked import AdapterError, CheckedEngine
from coldproof.adapters.protocol.engine import EngineDied, EngineError, RequestRefused, Served
from coldproof.adapters.protocol.kv_events import EventBatch, Published
from coldproof.adapters.protocol.metrics import Metrics
from coldproof.adapters.protocol.provenance import WrongRead
from coldproof.adapters.protocol.requests import Abort, Arrival, Completion, CompletionRequest, Message, Stage, Token
from coldproof.adapters.protocol.resets import ResetScope
from coldproof.adapters.protocol.shape import EngineShape

SHAPE = EngineShape(block_size=16, pool_blocks=None, max_model_tokens=64, adapter_slots=None, prefix_caching=None)
GOOD = Completion(tokens=(Token(5, 0.1), Token(6, 0.2)), finish_reason="length", cached_tokens=None)
REQUEST = CompletionRequest(model="m", prompt=(1, 2), max_tokens=2)


class Scripted:
    """An adapter that returns what a test sets."""

    name = "scripted"
    version = "1"
    base_model = "m"
    shape = SHAPE
    config = {"a": "b"}  # noqa: RUF012 - a protocol's property

    def __init__(self, answer: Callable[[], Completion], left_out: frozenset[Capability] = frozenset()) -> None:
        self.answer = answer
        self.capabilities = {c: Support(True, "scripted") for c in Capability if c not in left_out}
        self.calls: list[tuple[object, ...]] = []
        self.results: list[Completion | EngineError] = []
        self.batches: tuple[EventBatch, ...] = ()

    def complete(self, request: CompletionRequest) -> Completion:
        return self.answer()

    def serve(
        self, arrivals: Sequence[Arrival], on_token: Callable[[int, int], None], between: Callable[[], None]
    ) -> list[Served]:
        self.calls.append(("serve", tuple(arrivals), on_token, between))
        return [Served(0.0, 1.0, result) for result in self.results]

    def render(self, messages: tuple[Message, ...]) -> tuple[int, ...]:
        return (len(messages),)

    def clock(self) -> float:
        return 17.0

    def load_adapter(self, name: str, path: str, *, in_place: bool) -> None:
        self.calls.append(("load", name, path, in_place))

    def switch_adapter(self, name: str, path: str) -> None:
        self.calls.append(("switch", name, path))

    def unload_adapter(self, name: str) -> None:
        self.calls.append(("unload", name))

    def reset_cache(self) -> bool:
        return False

    def metrics(self) -> Metrics:
        return Metrics(running=3)

    def take_events(self) -> Published:
        return Published(batches=self.batches)

    def wrong_reads(self) -> tuple[WrongRead, ...]:
        """Return no reads."""
        return ()

    def alive(self) -> bool:
        return False

    def log_tail(self) -> str:
        return "last words"

    def stop(self) -> None:
        self.calls.append(("stop",))


def checked(answer: Completion) -> CheckedEngine:
    """Return a checked engine that gives this answer."""
    return CheckedEngine(Scripted(lambda: answer))


def test_a_good_answer_passes_unchanged() -> None:
    """A missing count of cached tokens is valid."""
    assert checked(GOOD).complete(REQUEST) is GOOD


def altered(**fields: Any) -> Completion:
    """Return the valid answer with changed fields."""
    return msgspec.structs.replace(GOOD, **fields)


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (Completion(tokens=(Token(-1, 0.1),), finish_reason=None, cached_tokens=0), "a negative token id"),
        (Completion(tokens=(), finish_reason=None, cached_tokens=-1), "cached_tokens -1"),
        (
            Completion(tokens=(), finish_reason=None, cached_tokens=0, others=((Token(-7, 0.1),),)),
            "a negative token id",
        ),
        (altered(tokens=[Token(5, 0.1)]), "tokens \\[.*: expected a tuple of Token"),
        (altered(tokens=((5, 0.1),)), "tokens .*: expected a tuple of Token"),
        (altered(tokens=(Token("5", 0.1),)), "a token id '5': expected an int"),
        (altered(tokens=(Token(True, 0.1),)), "a token id True"),
        (altered(tokens=(Token(5, -0.1),)), "a token at -0.1: expected seconds since the request was sent"),
        (altered(tokens=(Token(5, math.nan),)), "a token at nan"),
        (altered(tokens=(Token(5, 0.2), Token(6, 0.1))), "tokens at .0.2, 0.1.: times run backwards"),
        (altered(cached_tokens=1.5), "cached_tokens 1.5: expected an int from 0, or None if not reported"),
        (altered(cached_tokens=True), "cached_tokens True"),
        (altered(cached_between=(3, 2)), "cached_between .3, 2.: expected two ints, minimum and maximum"),
        (altered(cached_between=(0, None)), "cached_between .0, None."),
        (altered(cached_between=3), "cached_between 3"),
        (altered(preemptions=-1), "preemptions -1"),
        (altered(preempted_at=(-0.5,)), "preempted_at .*: expected seconds"),
        (altered(prompt=("a",)), "the prompt .*: expected a tuple of token ids"),
        (altered(finish_reason=3), "finish_reason 3"),
        (altered(finish_reason=""), "finish_reason ''"),
        (altered(aborted=Stage.QUEUED), "aborted 'queued' for a request without a client disconnect"),
    ],
)
@pytest.mark.parametrize("side_by_side", [False, True])
def test_an_impossible_answer_is_the_adapters_fault(answer: Completion, complaint: str, side_by_side: bool) -> None:
    """The error names the adapter and what is wrong, also for one of several answers."""
    ask = (lambda: serve(GOOD, answer)) if side_by_side else (lambda: checked(answer).complete(REQUEST))
    with pytest.raises(AdapterError, match=f"adapter scripted returned {complaint}"):
        ask()


def test_none_is_no_answer() -> None:
    """An adapter without an answer has to raise the reason."""
    with pytest.raises(AdapterError, match="adapter scripted returned None: expected a Completion"):
        CheckedEngine(Scripted(lambda: None)).complete(REQUEST)  # type: ignore[arg-type, return-value]


def test_an_aborted_request_has_no_end() -> None:
    """A client that disconnects sees no end. An adapter's own word for a stage is refused."""
    disconnecting = msgspec.structs.replace(REQUEST, abort=Abort(after_tokens=1))
    both = altered(aborted=Stage.DECODE)
    with pytest.raises(AdapterError, match="aborted 'while decoding' and finish_reason 'length': expected only one"):
        checked(both).complete(disconnecting)
    with pytest.raises(AdapterError, match="aborted 'decode': expected a Stage"):
        checked(altered(aborted="decode", finish_reason=None)).complete(disconnecting)
    good = altered(aborted=Stage.DECODE, finish_reason=None)
    assert checked(good).complete(disconnecting) is good


def test_more_cached_than_the_prompt_is_long_is_the_engines_fault() -> None:
    """Engines have reported such counts. The bound of the reference cache detects it: the requirement is violated."""
    more = altered(cached_tokens=3)
    assert checked(more).complete(REQUEST) is more


def test_more_tokens_than_requested_are_the_engines_fault() -> None:
    """The checkers report surplus tokens, for example a token that is sent twice."""
    longer = Completion(
        tokens=(Token(1, 0.1),) * 3, finish_reason=None, cached_tokens=0, others=((Token(1, 0.1),) * 3,)
    )
    assert checked(longer).complete(REQUEST) is longer


def nothing(*_: object) -> None:
    """Ignore tokens and polls."""


def serve(*results: Completion | EngineError, requests: int = 2) -> list[Served]:
    """Return what a checked engine returns for these requests when its adapter returns these results."""
    engine = Scripted(lambda: GOOD)
    engine.results = list(results)
    return CheckedEngine(engine).serve([Arrival(REQUEST)] * requests, nothing, nothing)


def test_good_answers_and_refusals_pass_unchanged_side_by_side() -> None:
    """Results keep their order, and a refusal is a result."""
    refusal = RequestRefused(400, "too long")
    assert [one.result for one in serve(GOOD, refusal)] == [GOOD, refusal]


@pytest.mark.parametrize("results", [(), (GOOD,), (GOOD,) * 3])
def test_there_has_to_be_a_result_for_each_request(results: tuple[Completion, ...]) -> None:
    """A missing or surplus result is a fault of the adapter, not of the engine."""
    with pytest.raises(AdapterError, match=f"adapter scripted returned {len(results)} results for 2 requests"):
        serve(*results)


@pytest.mark.parametrize(
    ("served", "complaint"),
    [
        (Served(2.0, 1.0, GOOD), "a request that was sent at 2.0 and finished at 1.0"),
        (Served(0.0, math.nan, GOOD), "a request that was sent at 0.0 and finished at nan"),
        (Served(0.0, 1.0, ValueError("no")), "for an arrival: expected a Served with a Completion or an EngineError"),
        (GOOD, "for an arrival: expected a Served"),
    ],
)
def test_the_result_of_an_arrival_is_checked(served: Any, complaint: str) -> None:
    """Times are checked, and a result is an answer or an EngineError."""
    engine = Scripted(lambda: GOOD)
    engine.serve = lambda *_: [served]  # type: ignore[method-assign]
    with pytest.raises(AdapterError, match=complaint):
        CheckedEngine(engine).serve([Arrival(REQUEST)], nothing, nothing)


def test_callbacks_and_offsets_reach_the_adapter() -> None:
    """The adapter gets requests with their offsets and both callbacks."""
    engine, arrivals = Scripted(lambda: GOOD), [Arrival(REQUEST, 0), Arrival(REQUEST, 50)]
    engine.results = [GOOD, GOOD]
    on_token, between = (lambda *_: None), (lambda: None)
    wrapped = CheckedEngine(engine)
    wrapped.serve(arrivals, on_token, between)
    assert engine.calls == [("serve", tuple(arrivals), on_token, between)]
    assert wrapped.requests == 2


def test_an_unreported_capability_is_an_error() -> None:
    """An adapter has to report every capability, even if only as unknown."""
    silent = Scripted(lambda: GOOD, left_out=frozenset({Capability.METRICS, Capability.CACHE_SALT}))
    with pytest.raises(AdapterError, match="adapter scripted does not report the capabilities: cache salt, metrics"):
        CheckedEngine(silent)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"capabilities": dict.fromkeys(Capability, Support(True, " "))}, "without evidence"),
        (
            {"capabilities": dict.fromkeys(Capability, Support("yes", "seen"))},
            "expected a Support with present True",
        ),  # type: ignore[arg-type]
        ({"capabilities": dict.fromkeys(Capability, True)}, "reports True for .*: expected a Support"),
        ({"shape": msgspec.structs.replace(SHAPE, block_size=0)}, "a shape with block_size 0"),
        ({"shape": msgspec.structs.replace(SHAPE, max_model_tokens=None)}, "a shape with max_model_tokens None"),
        ({"config": {}}, "the config {}"),
        ({"config": {"threads": 4}}, "the config {'threads': 4}: expected a non-empty mapping"),
        ({"base_model": ""}, "has the base_model ''"),
    ],
)
def test_statements_about_the_engine_are_checked(changes: dict[str, Any], complaint: str) -> None:
    """Statements of an adapter are checked before the first call."""
    engine = Scripted(lambda: GOOD)
    for name, value in changes.items():
        setattr(engine, name, value)
    with pytest.raises(AdapterError, match=complaint):
        CheckedEngine(engine)


def test_a_method_that_is_not_there_is_named() -> None:
    """A missing method is found before a run needs it."""

    class Half:
        name = "half"

        def complete(self) -> None: ...

    with pytest.raises(AdapterError, match=r"adapter half has no .*clock, config.*switch_adapter"):
        CheckedEngine(Half())  # type: ignore[arg-type]


@pytest.mark.parametrize("what", ["complete", "load_adapter", "unload_adapter", "switch_adapter", "metrics", "render"])
def test_an_error_of_the_adapters_own_is_named(what: str) -> None:
    """An exception of the adapter ends the run, where an EngineError is something to report."""
    engine = Scripted(lambda: GOOD)

    def breaks(*_: object, **__: object) -> None:
        raise KeyError("tokens")

    setattr(engine, what, breaks)
    wrapped = CheckedEngine(engine)
    calls = {
        "complete": lambda: wrapped.complete(REQUEST),
        "load_adapter": lambda: wrapped.load_adapter("a", "b", in_place=False),
        "unload_adapter": lambda: wrapped.unload_adapter("a"),
        "switch_adapter": lambda: wrapped.switch_adapter("a", "b"),
        "metrics": wrapped.metrics,
        "render": lambda: wrapped.render(()),
    }
    with pytest.raises(AdapterError, match=f"adapter scripted raised KeyError in {what} .*: an adapter reports errors"):
        calls[what]()


def test_a_figure_is_a_number_or_none() -> None:
    """A metric is a number or None, and a reset returns True or False."""
    engine = Scripted(lambda: GOOD)
    engine.metrics = lambda: Metrics(running=math.nan)  # type: ignore[method-assign]
    engine.reset_cache = lambda: "ok"  # type: ignore[method-assign, assignment, return-value]
    with pytest.raises(AdapterError, match="running nan: expected a number, or None"):
        CheckedEngine(engine).metrics()
    with pytest.raises(AdapterError, match="'ok' from reset_cache: expected True or False"):
        CheckedEngine(engine).reset_cache()


class Resetting(Scripted):
    """An adapter with larger resets that returns `said`."""

    said: object = True

    def reset_more(self, scope: tuple[ResetScope, ...]) -> bool:
        self.calls.append(("reset", scope))
        return self.said  # type: ignore[return-value]


def test_a_reset_of_more_is_passed_on_where_the_engine_has_it() -> None:
    """Without the capability it is refused with the evidence, and a claim without the method is the adapter's fault."""
    both = (ResetScope.RUNNING, ResetScope.SECOND_TIER)
    engine = Resetting(lambda: GOOD)
    assert CheckedEngine(engine).reset_more(both) is True
    assert engine.calls == [("reset", both)]
    engine.capabilities[Capability.RESET_SECOND_TIER] = Support(False, "no tier here")
    with pytest.raises(RequestRefused, match="no tier here"):
        CheckedEngine(engine).reset_more(both)
    assert engine.calls == [("reset", both)]
    engine.said = "ok"
    with pytest.raises(AdapterError, match="'ok' from reset_more: expected True or False"):
        CheckedEngine(engine).reset_more(both[:1])
    with pytest.raises(AdapterError, match="can reset running requests by its capabilities: no reset_more"):
        CheckedEngine(Scripted(lambda: GOOD)).reset_more(both[:1])


class ResettingOtherCaches(Resetting):
    """An adapter that can also reset another cache and keep the prefix cache."""

    def reset_beside(self, scope: tuple[ResetScope, ...]) -> bool:
        self.calls.append(("reset beside", scope))
        return self.said  # type: ignore[return-value]


def test_a_reset_of_another_cache_alone_is_passed_on_where_the_engine_has_it() -> None:
    """Without the method it is refused, and never becomes a reset of the prefix cache."""
    scope = (ResetScope.ENCODER,)
    engine, other = ResettingOtherCaches(lambda: GOOD), Resetting(lambda: GOOD)
    for one in (engine, other):
        one.capabilities[Capability.RESET_ENCODER] = Support(True, "a test")
    assert CheckedEngine(engine).reset_beside(scope) is True
    assert engine.calls == [("reset beside", scope)]
    with pytest.raises(RequestRefused, match="with the prefix cache only"):
        CheckedEngine(other).reset_beside(scope)
    engine.said = None
    with pytest.raises(AdapterError, match="None from reset_beside: expected True or False"):
        CheckedEngine(engine).reset_beside(scope)
    engine.capabilities[Capability.RESET_ENCODER] = Support(False, "no encoder here")
    with pytest.raises(RequestRefused, match="no encoder here"):
        CheckedEngine(engine).reset_beside(scope)
    assert other.calls == []


def test_controls_and_facts_are_passed_on() -> None:
    """The wrapper changes neither calls nor results."""
    engine = Scripted(lambda: GOOD)
    wrapped = CheckedEngine(engine)
    wrapped.load_adapter("n", "/p", in_place=True)
    wrapped.unload_adapter("n")
    wrapped.stop()
    assert engine.calls == [("load", "n", "/p", True), ("unload", "n"), ("stop",)]
    assert (wrapped.alive(), wrapped.log_tail(), wrapped.metrics().running) == (False, "last words", 3)
    assert wrapped.reset_cache() is False
    assert (wrapped.clock(), wrapped.render((Message("user", "Hi"),))) == (17.0, (1,))
    assert (wrapped.name, wrapped.version, wrapped.base_model, wrapped.shape) == ("scripted", "1", "m", SHAPE)
    assert (wrapped.config, wrapped.capabilities) == (engine.config, engine.capabilities)


def test_kv_events_come_in_the_order_of_their_numbers() -> None:
    """A gap is the engine's matter and is passed on; batches in the wrong order are a fault of the adapter."""
    engine = Scripted(lambda: GOOD)
    engine.batches = (EventBatch(0, 1.0, ()), EventBatch(2, 1.0, ()))
    assert CheckedEngine(engine).take_events() == Published(batches=engine.batches)
    engine.batches = engine.batches[::-1]
    with pytest.raises(AdapterError, match=r"in the order \[2, 0\]"):
        CheckedEngine(engine).take_events()


def test_overlapping_requests_are_busy_once() -> None:
    """Four requests at a time for 0.3 s are 0.3 s of busy time, not 1.2 s. Time between requests is not busy."""
    together = threading.Barrier(4)

    def slowly() -> Completion:
        together.wait()
        time.sleep(0.3)
        return GOOD

    engine = CheckedEngine(Scripted(slowly))
    threads = [threading.Thread(target=engine.complete, args=(REQUEST,)) for _ in range(4)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    whole = time.monotonic() - began
    time.sleep(0.1)
    assert engine.requests == 4
    assert 0.3 <= engine.busy_seconds <= whole


def test_a_request_that_fails_was_busy_too_and_is_over() -> None:
    """A failed request counts as busy until its error and no longer."""

    def dies() -> Completion:
        time.sleep(0.05)
        raise EngineDied("gone")

    engine = CheckedEngine(Scripted(dies))
    for count in (1, 2):
        with pytest.raises(EngineDied):
            engine.complete(REQUEST)
        assert engine.requests == count
    before = engine.busy_seconds
    time.sleep(0.05)
    assert before >= 0.1
    assert engine.busy_seconds == before
