"""A server that nobody has told us about: how it is asked, what is read of its answers, and when these are cold."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from support.fake_plain import PlainServer, serving
from support.fake_reply import answer

from coldproof.adapters.endpoint.engine import EndpointEngine
from coldproof.adapters.endpoint.forms import Form
from coldproof.adapters.endpoint.probes import MOST_DISPLACING
from coldproof.adapters.endpoint.spec import attach
from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.engine import EngineDied, RequestRefused
from coldproof.adapters.protocol.requests import Arrival, CompletionRequest, Message, ResponseOptions

TEXTS = {"texts": True, "scores": False}
PROMPT = tuple(map(ord, "a prompt of printable characters"))


def attached(fake: PlainServer) -> EndpointEngine:
    """Return the engine that a run would use."""
    engine = attach(fake.url, adapter_for=lambda _: None)
    assert isinstance(engine, EndpointEngine)
    fake.bodies.clear()
    return engine


def request(**changes: Any) -> CompletionRequest:
    """Return a request of three tokens."""
    return CompletionRequest(**{"model": "plain", "prompt": PROMPT, "max_tokens": 3, **changes})


@pytest.mark.parametrize(
    ("offers", "form"),
    [({"ids": True}, Form.FIELDS), ({}, Form.SCORES), (TEXTS, Form.CHARACTERS), ({"texts": True}, Form.CHARACTERS)],
)
def test_the_first_form_that_returns_token_ids_is_used(offers: dict[str, Any], form: Form) -> None:
    """The ids are those of the model, and the report says where they stand."""
    with serving(**offers) as fake:
        engine = attached(fake)
        found = engine.complete(request())
    assert engine.client.form is form
    assert [token.id for token in found.tokens] == answer("plain", PROMPT, 3)
    assert (found.finish_reason, found.cached_tokens is None) == ("length", False)
    assert form.value in engine.capabilities[Capability.TOKEN_OUTPUTS].evidence
    assert engine.config["form of requests"] == form.value


@pytest.mark.parametrize("offers", [{}, {"texts": True}])
def test_scores_are_read_where_the_server_has_them(offers: dict[str, Any]) -> None:
    """With the margin to the second best token, from a stream or from a whole response."""
    with serving(**offers) as fake:
        engine = attached(fake)
        found = engine.complete(request(options=ResponseOptions(logprobs=True)))
    assert [(token.logprob, token.gap) for token in found.tokens] == [(-0.5, 2.0)] * 3
    assert [token.id for token in found.tokens] == answer("plain", PROMPT, 3)


@pytest.mark.parametrize(
    ("offers", "says"),
    [
        ({"scores": False}, "counted 2 tokens in the answer, of which 0 are known"),
        ({**TEXTS, "letters": 2}, "counted 48 tokens in the prompt"),
        ({**TEXTS, "usage": False}, "without usage"),
    ],
)
def test_answers_without_token_ids_are_not_read(offers: dict[str, Any], says: str) -> None:
    """Characters are tokens only if the server counts as many. The report says what was tried."""
    with serving(**offers) as fake:
        found = attached(fake).capabilities[Capability.TOKEN_OUTPUTS]
    assert found.present is False
    assert says in found.evidence


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"messages": (Message("user", "Hi."),)}, "chats"),
        ({"priority": 1}, "priorities"),
        ({"options": ResponseOptions(answers=2)}, "several answers"),
        ({"options": ResponseOptions(pattern="a")}, "patterns"),
        ({"options": ResponseOptions(prompt_logprobs=True)}, "prompt logprobs"),
        ({"options": ResponseOptions(stop=("x",))}, "leaves out tokens"),
        ({"prompt": (7,)}, "no printable character"),
    ],
)
def test_what_a_form_cannot_say_is_not_sent(changes: dict[str, Any], says: str) -> None:
    """A server could ignore it, and the answer would be to another request."""
    with serving(**TEXTS) as fake:
        engine = attached(fake)
        with pytest.raises(RequestRefused, match=says):
            engine.complete(request(**changes))
    assert fake.bodies == []


@pytest.mark.parametrize(
    ("offers", "says"),
    [
        ({"keeps": 0}, "sent twice has no cached tokens"),
        ({"bypass": True}, "cache_prompt false"),
        ({"resets": True}, "after a reset"),
        ({"keeps": 3}, r"after other prompts, .*\(4 prompts\)"),
    ],
)
def test_a_cold_answer_is_one_without_cached_tokens(offers: dict[str, Any], says: str) -> None:
    """The same request hits otherwise, if there is a cache."""
    with serving(**offers) as fake:
        engine = attached(fake)
        engine.complete(request())
        assert bool(engine.complete(request()).cached_tokens) == (offers.get("keeps") != 0)
        assert engine.complete(request(cold=True)).cached_tokens == 0
        (served,) = engine.serve([Arrival(request(cold=True))], lambda *_: None, lambda: None)
    assert msgspec.to_builtins(served.result)["cached_tokens"] == 0
    assert re.search(says, engine.capabilities[Capability.COLD_ANSWERS].evidence)
    assert engine.capabilities[Capability.COLD_ANSWERS].present is True


@pytest.mark.parametrize(
    ("offers", "says"),
    [
        ({"counts": False}, "does not report cached tokens"),
        ({"keeps": 10**6}, "other prompts"),
        ({"bypass": True, "uncounted": "cold", "keeps": 10**6}, "other prompts"),
        ({"texts": True, "uncounted": "whole", "keeps": 0}, "other prompts"),
    ],
)
def test_a_server_whose_answers_are_not_known_to_be_cold(offers: dict[str, Any], says: str) -> None:
    """Another server must give them: what agrees with a warm answer shows nothing."""
    with serving(**offers) as fake:
        found = attached(fake).capabilities[Capability.COLD_ANSWERS]
    assert found.present is False
    assert says in found.evidence
    assert "--cold-url" in found.evidence


def test_one_miss_with_a_salt_is_no_salt() -> None:
    """A replica of the server that has not seen the prompt misses as well. SALT-1 would accuse the server for it."""
    with serving() as fake:
        attach(fake.url, adapter_for=lambda _: None)
        first = next(place for place, body in enumerate(fake.bodies) if "cache_salt" in body)
    with serving(replica=first) as fake:
        found = attached(fake).capabilities[Capability.CACHE_SALT]
    assert found.present is False
    assert found.evidence.endswith("0 with an unused salt")


def test_other_prompts_do_not_begin_as_the_cold_one_does() -> None:
    """A first token in common would be a hit."""
    with serving(keeps=2) as fake:
        engine = attached(fake)
        engine.complete(request(cold=True))
        others, last = fake.bodies[:-1], fake.bodies[-1]
    assert len(others) == engine.client.displacing >= 2
    assert last["prompt"] == list(PROMPT)
    assert all(other["prompt"][0] != PROMPT[0] for other in others)


def test_a_request_that_hits_all_the_same_is_sent_again_behind_more_prompts() -> None:
    """The cache may hold more than the probes found. If it still hits, the oracle refuses the answer."""
    with serving(keeps=2) as fake:
        engine = attached(fake)
        engine.complete(request())
        fake.keeps = 2 * engine.client.displacing
        fake.bodies.clear()
        assert engine.complete(request(cold=True)).cached_tokens == 0
        assert len(fake.bodies) == 3 * engine.client.displacing + 2
        engine.complete(request())
        fake.keeps = MOST_DISPLACING * 4
        assert engine.complete(request(cold=True)).cached_tokens


def test_a_server_that_is_not_healthy_any_more_has_ended() -> None:
    """Whatever the status of its errors is. One that never said that it is healthy is only refused by."""
    with serving() as fake:
        engine = attached(fake)
        assert engine.alive()
        fake.dies_at = 1
        engine.complete(request())
        with pytest.raises(EngineDied, match="not healthy any more"):
            engine.complete(request())
        assert not engine.alive()
    with serving(health=False) as fake:
        engine = attached(fake)
        fake.dies_at = 0
        with pytest.raises(RequestRefused, match="404"):
            engine.complete(request())
        assert engine.alive()


@pytest.mark.parametrize(("limit", "told"), [(300, True), (None, False)])
def test_a_limit_that_the_server_does_not_tell_is_a_guess(limit: int | None, told: bool) -> None:
    """Workloads stay below it, and no answer to a longer prompt is wrong for that."""
    with serving(limit=limit) as fake:
        shape = attached(fake).shape
    assert (shape.max_model_tokens, shape.limit_is_told) == (limit or 2048, told)
