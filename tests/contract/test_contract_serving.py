"""How an adapter serves requests side by side: each at its time, told of as it goes, none lost with another."""

from __future__ import annotations

import threading
from collections import defaultdict

from contract.rules import asked, can, goes_on, hold, is_error, need, new_name, serve

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.protocol.engine import RequestRefused, Served
from coldproof.adapters.protocol.requests import Arrival, Completion

SLACK = 0.02  # seconds: a thread that is to wake up at a time may do so a little sooner by another clock


def lengths(served: list[Served]) -> list[int | None]:
    """Tokens of each answer, None where there is none."""
    return [len(one.result.tokens) if isinstance(one.result, Completion) else None for one in served]


def test_results_come_in_the_order_of_arrivals(engine: CheckedEngine) -> None:
    """Whichever is over first."""
    asked_for = [9, 2, 30, 5]
    got = lengths(serve(engine, *(asked(engine, tokens=count) for count in asked_for)))
    hold(got == asked_for, "Engine.serve", "return what became of each, in order", (asked_for, got))


def test_a_request_is_sent_at_its_offset(engine: CheckedEngine) -> None:
    """Not before it, and by the engine's clock; the order of the arrivals need not be that of the offsets."""
    arrivals = [Arrival(asked(engine), 300), Arrival(asked(engine), 0), Arrival(asked(engine), 120)]
    began = engine.clock()
    served = engine.serve(arrivals, lambda _number, _count: None, lambda: None)
    ended = engine.clock()
    for one, arrival in zip(served, arrivals, strict=True):
        after = one.sent - began
        rule = "each is sent at its offset, in milliseconds after the burst began"
        hold(after >= arrival.offset_ms / 1000 - SLACK, "Engine.serve", rule, (arrival.offset_ms, after))
        within = began - SLACK <= one.sent <= one.finished <= ended + SLACK
        hold(within, "Served", "sent and finished are times of the engine's clock", (began, one, ended))
    hold(lengths(served) == [6, 6, 6], "Engine.serve", "all are answered", served)


def test_tokens_are_told_of_as_they_come(engine: CheckedEngine) -> None:
    """Counts of each request grow, and end at the tokens of its answer."""
    counts: dict[int, list[int]] = defaultdict(list)
    arrivals = [Arrival(asked(engine, tokens=count)) for count in (12, 24)]
    served = engine.serve(arrivals, lambda number, count: counts[number].append(count), lambda: None)
    for number, got in enumerate(lengths(served)):
        told = counts[number]
        hold(told == sorted(told), "Engine.serve", "on_token(i, count): counts grow", told)
        hold(told and told[-1] == got, "Engine.serve", "on_token(i, count): the last is the answer's length", told)
        if can(engine, Capability.STREAMING):
            hold(len(told) > 1, "Capability.STREAMING", "tokens are told of while the answer goes on", told)
    hold(set(counts) == {0, 1}, "Engine.serve", "on_token is called with the arrival's number", dict(counts))


def test_the_caller_looks_in_between(engine: CheckedEngine) -> None:
    """From its own thread, while requests are in flight; what it looks at then must answer."""
    threads, seen = [], []

    def between() -> None:
        threads.append(threading.get_ident())
        seen.append((engine.metrics(), engine.clock(), engine.alive()))

    served = serve(engine, asked(engine, tokens=30), asked(engine, tokens=30), between=between)
    hold(threads, "Engine.serve", "between() is called again and again", threads)
    hold(set(threads) == {threading.get_ident()}, "Engine.serve", "between() comes from the caller's thread", threads)
    hold(lengths(served) == [30, 30], "Engine.serve", "a look changes nothing", served)


def test_one_refusal_loses_no_other(engine: CheckedEngine) -> None:
    """It is what became of that request; those beside it are answered."""
    served = serve(engine, asked(engine), asked(engine, model=new_name()), asked(engine))
    hold(lengths(served) == [6, None, 6], "Engine.serve", "an error of one request is that one's result", served)
    refusal = served[1].result
    hold(isinstance(refusal, RequestRefused), "Served.result", "RequestRefused where the engine says no", refusal)
    goes_on(engine, "a refusal in a burst")


def test_more_than_run_at_a_time_are_all_answered(engine: CheckedEngine) -> None:
    """The rest wait their turn."""
    many = (min(engine.shape.most_requests or 8, 8)) + 4
    served = serve(engine, *(asked(engine, tokens=4) for _ in range(many)))
    hold(lengths(served) == [4] * many, "Engine.serve", "return what became of each", served)


def test_the_same_request_twice_is_two_requests(engine: CheckedEngine) -> None:
    """Side by side, with one prompt; each has an answer of its own."""
    need(engine, Capability.TOKEN_PROMPTS)
    request = asked(engine, tokens=7)
    served = serve(engine, request, request)
    hold(lengths(served) == [7, 7], "Engine.serve", "return what became of each", served)
    hold(not any(is_error(one.result) for one in served), "Engine.serve", "equal requests do not collide", served)
