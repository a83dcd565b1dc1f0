"""Counters of requests at several doors: what counts, and what must not."""

from __future__ import annotations

from typing import Any

import pytest
from support.evidence import evidence
from support.histories import ask, burst, history, outcome

from coldproof.adapters.protocol.doors import IMPOSSIBLE_PRIORITY, Door
from coldproof.harness.features.doors.evidence import Doors
from coldproof.harness.history.records import History, Outcome
from coldproof.harness.judgement.counters import Evidence
from coldproof.harness.workload.steps import Workload

PROMPT, ANSWER = range(100, 140), tuple(range(70, 80))  # two blocks of 16 and a half; then decode fills the third


def sent(*doors: Door | None, priorities: tuple[int, ...] = (0, 0, 0)) -> dict[str, Any]:
    """The workload of requests at these doors; None: at the usual door of token ids."""
    places = [{} if door is None else {"door": door, "chat": not door.takes_ids} for door in doors]
    requests = (ask(priority=p, **place) for p, place in zip(priorities, places, strict=False))
    return {"workload": Workload(tuple(burst(one) for one in requests))}


def first(**more: Any) -> Outcome:
    """The request that computes the prompt."""
    return outcome(0, PROMPT, ANSWER, **more)


def second(number: int = 1, **more: Any) -> Outcome:
    """The same prompt."""
    return outcome(number, PROMPT, ANSWER, **more)


def turn(**more: Any) -> Outcome:
    """The next turn."""
    return outcome(1, (*PROMPT, *ANSWER, 7), **{"cached_tokens": 48, **more})


HIT: dict[str, Any] = {"cached_tokens": 32}
ACROSS = sent(Door.CHAT, Door.MESSAGES)
SHOWS: list[tuple[Evidence, History, list[History]]] = [
    (
        Doors.HITS,
        history(first(), second(**HIT), **ACROSS),
        [
            history(first(), second(**HIT), **sent(Door.CHAT, Door.CHAT)),
            history(first(), second(**HIT), **sent(None, Door.COMPLETIONS)),
            history(first(), second(), **ACROSS),
            history(first(salt="red"), second(**HIT), **ACROSS),
            history(first(), second(sent=0.1, **HIT), **ACROSS),
            # What its own door computed may be what it hit.
            history(first(), second(), second(2, **HIT), **sent(Door.CHAT, Door.MESSAGES, Door.MESSAGES)),
        ],
    ),
    (
        Doors.CHANCES,
        history(first(salt="red"), second(), **ACROSS),
        [
            history(first(), second(), **ACROSS),
            history(first(salt="red"), second(), **sent(Door.CHAT, Door.CHAT)),
            history(first(salt="red"), outcome(1, range(200, 240)), **ACROSS),
            history(first(salt="red", error="lost"), second(), **ACROSS),
        ],
    ),
    (
        Doors.TURNS,
        history(first(), turn(), **ACROSS),
        [
            history(first(), turn(), **sent(Door.CHAT, Door.CHAT)),
            history(first(), turn(cached_tokens=32), **ACROSS),
            history(first(salt="red"), turn(), **ACROSS),
            history(first(), second(**HIT), **ACROSS),
        ],
    ),
    (
        Doors.ODD_PRIORITIES,
        history(first(), second(), **sent(Door.CHAT, Door.MESSAGES, priorities=(IMPOSSIBLE_PRIORITY,) * 2)),
        [
            history(first(), second(), **sent(Door.CHAT, Door.CHAT, priorities=(IMPOSSIBLE_PRIORITY,) * 2)),
            history(first(), second(), **sent(Door.CHAT, Door.MESSAGES, priorities=(5, 5))),
            history(first(), second(), **sent(Door.CHAT, Door.MESSAGES, priorities=(IMPOSSIBLE_PRIORITY, 0))),
        ],
    ),
]


@pytest.mark.parametrize(("what", "shows", "_others"), SHOWS, ids=[row[0].name for row in SHOWS])
def test_what_happened_is_counted(what: Evidence, shows: History, _others: list[History]) -> None:
    """In the plainest history that shows it."""
    assert evidence(shows, {})[what] > 0


@pytest.mark.parametrize(
    ("what", "one"),
    [(what, one) for what, _, others in SHOWS for one in others],
    ids=[f"{what.name}-{i}" for what, _, others in SHOWS for i in range(len(others))],
)
def test_what_did_not_happen_is_not_counted(what: Evidence, one: History) -> None:
    """However similar."""
    assert evidence(one, {})[what] == 0
