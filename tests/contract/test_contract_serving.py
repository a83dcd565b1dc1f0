"""How an adapter serves requests side by side: each at its time, with progress, and none lost by another's failure."""

from __future__ import annotations

import threading
from collections import defaultdict

from contract.rules import can, check, is_error, need, new_name, new_request, serve, still_answers

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.protocol.engine import RequestRefused, Served
from coldproof.adapters.protocol.requests import Arrival, Completion

SLACK = 0.02  # seconds: a thread that is to wake up at a time may do so a little sooner by another clock


def lengths(served: list[Served]) -> list[int | None]:
    """Return the number of tokens of each answer, None where there is none."""
    return [len(one.result.tokens) if isinstance(one.result, Completion) else None for one in served]


def test_results_come_in_the_order_of_arrivals(engine: CheckedEngine) -> None:
    """Results come in the order of arrivals, whichever request ends first."""
    requested = [9, 2, 30, 5]
    got = lengths(serve(engine, *(new_request(engine, tokens=count) for count in requested)))
    check(got == requested, "Engine.serve", "return what became of each, in order", (requested, got))


def test_a_request_is_sent_at_its_offset(engine: CheckedEngine) -> None:
    """No request is sent before its offset by the engine's clock. Arrivals need not be sorted by offset."""
    arrivals = [Arrival(new_request(engine), 300), Arrival(new_request(engine), 0), Arrival(new_request(engine), 120)]
    began = engine.clock()
    served = engine.serve(arrivals, lambda _number, _count: None, lambda: None)
    ended = engine.clock()
    for one, arrival in zip(served, arrivals, strict=True):
        after = one.sent - began
        rule = "each is sent at its offset, in milliseconds after the burst began"
        check(after >= arrival.offset_ms / 1000 - SLACK, "Engine.serve", rule, (arrival.offset_ms, after))
        within = began - SLACK <= one.sent <= one.finished <= ended + SLACK
        check(within, "Served", "sent and finished are times of the engine's clock", (began, one, ended))
    check(lengths(served) == [6, 6, 6], "Engine.serve", "all are answered", served)


def test_tokens_are_reported_as_they_arrive(engine: CheckedEngine) -> None:
    """The token counts of each request grow and end at the length of its answer."""
    counts: dict[int, list[int]] = defaultdict(list)
    arrivals = [Arrival(new_request(engine, tokens=count)) for count in (12, 24)]
    served = engine.serve(arrivals, lambda number, count: counts[number].append(count), lambda: None)
    for number, got in enumerate(lengths(served)):
        reported = counts[number]
        check(reported == sorted(reported), "Engine.serve", "on_token(i, count): counts grow", reported)
        check(
            reported and reported[-1] == got,
            "Engine.serve",
            "on_token(i, count): the last is the answer's length",
            reported,
        )
        if can(engine, Capability.STREAMING):
            check(
                len(reported) > 1, "Capability.STREAMING", "tokens are reported while the answer is generated", reported
            )
    check(set(counts) == {0, 1}, "Engine.serve", "on_token is called with the arrival's number", dict(counts))


def test_the_caller_is_called_between_tokens(engine: CheckedEngine) -> None:
    """`between` is called from the caller's thread while requests run, and metrics, clock and liveness work
    meanwhile.
    """
    threads, seen = [], []

    def between() -> None:
        threads.append(threading.get_ident())
        seen.append((engine.metrics(), engine.clock(), engine.alive()))

    served = serve(engine, new_request(engine, tokens=30), new_request(engine, tokens=30), between=between)
    check(threads, "Engine.serve", "between() is called again and again", threads)
    check(set(threads) == {threading.get_ident()}, "Engine.serve", "between() comes from the caller's thread", threads)
    check(lengths(served) == [30, 30], "Engine.serve", "a look changes nothing", served)


def test_one_refusal_loses_no_other(engine: CheckedEngine) -> None:
    """A refusal is the result of its request alone; the requests beside it are answered."""
    served = serve(engine, new_request(engine), new_request(engine, model=new_name()), new_request(engine))
    check(lengths(served) == [6, None, 6], "Engine.serve", "an error of one request is that one's result", served)
    refusal = served[1].result
    check(isinstance(refusal, RequestRefused), "Served.result", "RequestRefused where the engine says no", refusal)
    still_answers(engine, "a refusal in a burst")


def test_more_than_run_at_a_time_are_all_answered(engine: CheckedEngine) -> None:
    """More requests than the engine runs at once are all answered."""
    many = (min(engine.shape.most_requests or 8, 8)) + 4
    served = serve(engine, *(new_request(engine, tokens=4) for _ in range(many)))
    check(lengths(served) == [4] * many, "Engine.serve", "return what became of each", served)


def test_the_same_request_twice_is_two_requests(engine: CheckedEngine) -> None:
    """Two equal requests side by side get an answer each."""
    need(engine, Capability.TOKEN_PROMPTS)
    request = new_request(engine, tokens=7)
    served = serve(engine, request, request)
    check(lengths(served) == [7, 7], "Engine.serve", "return what became of each", served)
    check(not any(is_error(one.result) for one in served), "Engine.serve", "equal requests do not collide", served)
