"""Evidence about requests at several doors of a server. Pure."""

from __future__ import annotations

from coldproof.adapters.protocol.doors import IMPOSSIBLE_PRIORITY, Door
from coldproof.harness.features.doors.facts import doors_of
from coldproof.harness.history.records import (
    History,
    Outcome,
    assumed_block,
    common_prefix,
    holds_written_block,
    written_tokens,
)
from coldproof.harness.judgement.counters import Evidence, computes


class Doors(Evidence):
    """Requests at several doors of a server."""

    HITS = "hits on what only another door computed"
    CHANCES = "requests that could have hit another identity's blocks of another door"
    TURNS = "next turns that hit what decode wrote for another door"
    ODD_PRIORITIES = "doors at which an impossible priority was sent"


@computes(Doors, order=120)
def door_facts(history: History) -> dict[str, float]:
    """Return the counters of hits across doors, and of what a door that loses an identity would show."""
    doors = doors_of(history)
    several = len(set(doors.values())) > 1  # otherwise nothing is compared, which most workloads would pay for
    outcomes = [outcome for outcome in history.outcomes if outcome.error is None and several]
    asked = {number: request for number, _, request in history.workload.requests()}
    odd = {doors[number] for number, request in asked.items() if request.priority == IMPOSSIBLE_PRIORITY}
    return {
        Doors.HITS: sum(hit_of_another_door(history, o, doors) for o in outcomes),
        Doors.CHANCES: sum(could_hit_wrongly(history, o, doors) for o in outcomes),
        Doors.TURNS: sum(is_turn_at_another_door(history, o, doors) for o in outcomes),
        Doors.ODD_PRIORITIES: len(odd) if len(odd) > 1 else 0,
    }


def earlier(history: History, outcome: Outcome) -> list[Outcome]:
    """Return the requests that had ended when this one was sent, and whose tokens share a block with its prompt."""
    block = assumed_block(history)
    return [
        other
        for other in history.outcomes
        if other.error is None
        and other.finished <= outcome.sent
        and common_prefix(written_tokens(other), outcome.prompt[:-1]) >= block
    ]


def hit_of_another_door(history: History, outcome: Outcome, doors: dict[int, Door]) -> bool:
    """Return whether a request hit what only requests at other doors computed for its identity."""
    same = [other for other in earlier(history, outcome) if set(other.identities) & set(outcome.identities)]
    return outcome.hit_at_least > 0 and bool(same) and all(away(outcome, other, doors) for other in same)


def could_hit_wrongly(history: History, outcome: Outcome, doors: dict[int, Door]) -> bool:
    """Return whether a request at another door under another identity computed a block of this prompt before."""
    return any(
        away(outcome, other, doors) and not set(other.identities) & set(outcome.identities)
        for other in earlier(history, outcome)
    )


def is_turn_at_another_door(history: History, outcome: Outcome, doors: dict[int, Door]) -> bool:
    """Return whether a prompt hit a block that the decode of a request at another door wrote."""
    block = assumed_block(history)
    return any(
        away(outcome, other, doors)
        and set(other.identities) & set(outcome.identities)
        and outcome.hit_at_least > len(other.prompt)
        and holds_written_block(other, outcome, block)
        for other in earlier(history, outcome)
    )


def away(outcome: Outcome, other: Outcome, doors: dict[int, Door]) -> bool:
    """Return whether two requests were sent at different doors."""
    return doors[outcome.request] is not doors[other.request]
