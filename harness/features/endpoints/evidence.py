"""Evidence about requests at several endpoints of a server. Pure."""

from __future__ import annotations

from collections import Counter

from coldproof.adapters.protocol.endpoints import ENDPOINT_CAPABILITIES, IMPOSSIBLE_PRIORITY, Endpoint
from coldproof.harness.features.endpoints.facts import endpoints_of
from coldproof.harness.history.records import (
    History,
    Outcome,
    assumed_block,
    common_prefix,
    holds_written_block,
    written_tokens,
)
from coldproof.harness.judgement.counters import Evidence, computes


class Endpoints(Evidence):
    """Requests at several endpoints of a server."""

    HITS = "hits on what only another endpoint computed"
    AT_COMPLETIONS = "requests at /v1/completions that could have hit another identity's blocks of another endpoint"
    AT_CHAT = "requests at /v1/chat/completions that could have hit another identity's blocks of another endpoint"
    AT_GENERATE = "requests at /inference/v1/generate that could have hit another identity's blocks of another endpoint"
    AT_RESPONSES = "requests at /v1/responses that could have hit another identity's blocks of another endpoint"
    AT_MESSAGES = "requests at /v1/messages that could have hit another identity's blocks of another endpoint"
    TURNS = "next turns that hit what decode wrote for another endpoint"
    ODD_PRIORITIES = "endpoints at which an impossible priority was sent"


CHANCES = {
    Endpoint.COMPLETIONS: Endpoints.AT_COMPLETIONS,
    Endpoint.CHAT: Endpoints.AT_CHAT,
    Endpoint.GENERATE: Endpoints.AT_GENERATE,
    Endpoint.RESPONSES: Endpoints.AT_RESPONSES,
    Endpoint.MESSAGES: Endpoints.AT_MESSAGES,
}
# For an engine that has an endpoint: it has to be tried, as each has a request type of its own.
CHANCES_WHERE = {ENDPOINT_CAPABILITIES[endpoint]: counter for endpoint, counter in CHANCES.items()}


@computes(Endpoints, order=120)
def endpoint_facts(history: History) -> dict[str, float]:
    """Return the counters of hits across endpoints, and of what an endpoint that loses an identity would show."""
    endpoints = endpoints_of(history)
    several = len(set(endpoints.values())) > 1  # otherwise nothing is compared, which most workloads would pay for
    outcomes = [outcome for outcome in history.outcomes if outcome.error is None and several]
    asked = {number: request for number, _, request in history.workload.requests()}
    odd = {endpoints[number] for number, request in asked.items() if request.priority == IMPOSSIBLE_PRIORITY}
    chances = Counter(CHANCES[endpoints[o.request]] for o in outcomes if could_hit_wrongly(history, o, endpoints))
    return {
        Endpoints.HITS: sum(hit_of_another_endpoint(history, o, endpoints) for o in outcomes),
        **{counter: chances[counter] for counter in CHANCES.values()},
        Endpoints.TURNS: sum(is_turn_at_another_endpoint(history, o, endpoints) for o in outcomes),
        Endpoints.ODD_PRIORITIES: len(odd) if len(odd) > 1 else 0,
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


def hit_of_another_endpoint(history: History, outcome: Outcome, endpoints: dict[int, Endpoint]) -> bool:
    """Return whether a request hit what only requests at other endpoints computed for its identity."""
    same = [other for other in earlier(history, outcome) if set(other.identities) & set(outcome.identities)]
    return outcome.hit_at_least > 0 and bool(same) and all(away(outcome, other, endpoints) for other in same)


def could_hit_wrongly(history: History, outcome: Outcome, endpoints: dict[int, Endpoint]) -> bool:
    """Return whether a request at another endpoint under another identity computed a block of this prompt before."""
    return any(
        away(outcome, other, endpoints) and not set(other.identities) & set(outcome.identities)
        for other in earlier(history, outcome)
    )


def is_turn_at_another_endpoint(history: History, outcome: Outcome, endpoints: dict[int, Endpoint]) -> bool:
    """Return whether a prompt hit a block that the decode of a request at another endpoint wrote."""
    block = assumed_block(history)
    return any(
        away(outcome, other, endpoints)
        and set(other.identities) & set(outcome.identities)
        and outcome.hit_at_least > len(other.prompt)
        and holds_written_block(other, outcome, block)
        for other in earlier(history, outcome)
    )


def away(outcome: Outcome, other: Outcome, endpoints: dict[int, Endpoint]) -> bool:
    """Return whether two requests were sent at different endpoints."""
    return endpoints[outcome.request] is not endpoints[other.request]
