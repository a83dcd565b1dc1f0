"""Counters of requests to several routes count what they name and nothing else."""

from __future__ import annotations

from typing import Any

from support.evidence import Shown, miscounted
from support.histories import ask, burst, history, outcome

from coldproof.adapters.protocol.endpoints import IMPOSSIBLE_PRIORITY, Endpoint
from coldproof.harness.features.endpoints.evidence import CHANCES, Endpoints
from coldproof.harness.history.records import Outcome
from coldproof.harness.workload.steps import Workload

PROMPT, ANSWER = range(100, 140), tuple(range(70, 80))  # two blocks of 16 and a half; then decode fills the third


def workload_of(*endpoints: Endpoint | None, priorities: tuple[int, ...] = (0, 0, 0)) -> dict[str, Any]:
    """Return the workload of requests to these routes. None is the usual route of token ids."""
    routes = [
        {} if endpoint is None else {"endpoint": endpoint, "chat": not endpoint.takes_ids} for endpoint in endpoints
    ]
    requests = (ask(priority=p, **route) for p, route in zip(priorities, routes, strict=False))
    return {"workload": Workload(tuple(burst(one) for one in requests))}


def first(**more: Any) -> Outcome:
    """Return the request that computes the prompt."""
    return outcome(0, PROMPT, ANSWER, **more)


def second(number: int = 1, **more: Any) -> Outcome:
    """Return another request for the same prompt."""
    return outcome(number, PROMPT, ANSWER, **more)


def turn(**more: Any) -> Outcome:
    """Return the next turn."""
    return outcome(1, (*PROMPT, *ANSWER, 7), **{"cached_tokens": 48, **more})


HIT: dict[str, Any] = {"cached_tokens": 32}
ACROSS = workload_of(Endpoint.CHAT, Endpoint.MESSAGES)
SHOWS: list[Shown] = [
    (
        Endpoints.HITS,
        history(first(), second(**HIT), **ACROSS),
        [
            history(first(), second(**HIT), **workload_of(Endpoint.CHAT, Endpoint.CHAT)),
            history(first(), second(**HIT), **workload_of(None, Endpoint.COMPLETIONS)),
            history(first(), second(), **ACROSS),
            history(first(salt="red"), second(**HIT), **ACROSS),
            history(first(), second(sent=0.1, **HIT), **ACROSS),
            # It may have hit what its own route computed.
            history(
                first(), second(), second(2, **HIT), **workload_of(Endpoint.CHAT, Endpoint.MESSAGES, Endpoint.MESSAGES)
            ),
        ],
    ),
    *(
        (
            counter,
            history(first(salt="red"), second(), **workload_of(other, endpoint)),
            [
                history(first(salt="red"), second(), **workload_of(endpoint, other)),
                history(first(), second(), **workload_of(other, endpoint)),
                history(first(salt="red"), second(), **workload_of(endpoint, endpoint)),
                history(first(salt="red"), outcome(1, range(200, 240)), **workload_of(other, endpoint)),
                history(first(salt="red", error="lost"), second(), **workload_of(other, endpoint)),
            ],
        )
        for endpoint, counter in CHANCES.items()
        for other in [next(one for one in Endpoint if one is not endpoint)]
    ),
    (
        Endpoints.TURNS,
        history(first(), turn(), **ACROSS),
        [
            history(first(), turn(), **workload_of(Endpoint.CHAT, Endpoint.CHAT)),
            history(first(), turn(cached_tokens=32), **ACROSS),
            history(first(salt="red"), turn(), **ACROSS),
            history(first(), second(**HIT), **ACROSS),
        ],
    ),
    (
        Endpoints.ODD_PRIORITIES,
        history(
            first(), second(), **workload_of(Endpoint.CHAT, Endpoint.MESSAGES, priorities=(IMPOSSIBLE_PRIORITY,) * 2)
        ),
        [
            history(
                first(), second(), **workload_of(Endpoint.CHAT, Endpoint.CHAT, priorities=(IMPOSSIBLE_PRIORITY,) * 2)
            ),
            history(first(), second(), **workload_of(Endpoint.CHAT, Endpoint.MESSAGES, priorities=(5, 5))),
            history(
                first(), second(), **workload_of(Endpoint.CHAT, Endpoint.MESSAGES, priorities=(IMPOSSIBLE_PRIORITY, 0))
            ),
        ],
    ),
]


def test_what_happened_is_counted_and_nothing_similar() -> None:
    """Each counter has the simplest history that it counts, and similar ones that it does not."""
    assert miscounted(SHOWS) == []
