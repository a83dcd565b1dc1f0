"""The endpoints of SGLang's server against a stand-in: what is sent, what is read, and which are present."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support import report_samples
from support.fake_reply import answer, rendered
from support.fake_sglang import MODEL, FakeSglang, ServerBehaviour, serving
from support.histories import ask, burst, put
from support.scripts import run_script

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.endpoints import ENDPOINT_CAPABILITIES, IMPOSSIBLE_PRIORITY, Endpoint
from coldproof.adapters.protocol.engine import MalformedAnswer, RequestRefused
from coldproof.adapters.protocol.requests import Completion, CompletionRequest, ResponseOptions
from coldproof.adapters.server.endpoints import NotExact
from coldproof.adapters.server.engine import ServerEngine
from coldproof.adapters.server.probe_endpoints import TURNS
from coldproof.adapters.sglang.client import SglangClient
from coldproof.adapters.sglang.endpoints import WHOLE
from coldproof.adapters.sglang.spec import attach
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.workload.steps import Workload

MESSAGES = [{"role": message.role, "content": message.content} for message in TURNS]
PROMPT = rendered(MESSAGES)
ENDPOINTS = (
    Capability.ENDPOINTS,
    *(ENDPOINT_CAPABILITIES[endpoint] for endpoint in (Endpoint.GENERATE, Endpoint.RESPONSES, Endpoint.MESSAGES)),
)


@pytest.fixture
def fake() -> Iterator[FakeSglang]:
    """Yield a server with all endpoints."""
    with serving() as made:
        yield made


def client_of(fake: FakeSglang) -> SglangClient:
    """Return a client of a stand-in, which reports cached tokens on all endpoints unless its behaviour says
    otherwise.
    """
    made = SglangClient(fake.url, alive=lambda: True)
    made.base_model, made.counts_at_endpoints = MODEL, fake.behaviour.reports
    return made


def new_request(endpoint: Endpoint | None, **changes: Any) -> CompletionRequest:
    """Return a chat of four messages for an endpoint, as the runner sends it."""
    messages = None if endpoint is not None and endpoint.takes_ids else TURNS
    facts = {"model": MODEL, "prompt": PROMPT, "max_tokens": 6, "messages": messages, "endpoint": endpoint}
    return CompletionRequest(**{**facts, **changes})


def complete(endpoint: Endpoint | None, behaviour: ServerBehaviour | None = None, **changes: Any) -> Completion:
    """Return the answer to one request on an endpoint of a new server."""
    with serving(behaviour) as made:
        return client_of(made).complete(new_request(endpoint, **changes))


def found_at(behaviour: ServerBehaviour) -> ServerEngine:
    """Return the attached engine of a server with this behaviour."""
    with serving(behaviour) as made:
        return attach(made.url, adapter_for=lambda _: None)


@pytest.mark.parametrize("endpoint", [None, *Endpoint])
def test_the_same_prompt_has_the_same_answer_on_every_endpoint(endpoint: Endpoint | None) -> None:
    """All endpoints give the same tokens, text and finish reason, and nothing was cached."""
    got, expected = complete(endpoint), answer("", PROMPT, 6)
    assert [token.id for token in got.tokens] == expected
    assert (got.text, got.finish_reason, got.cached_tokens) == ("".join(map(chr, expected)), "length", 0)


def test_each_endpoint_gets_its_own_fields(fake: FakeSglang) -> None:
    """Requests are greedy and ignore end tokens where there is a field for it. /v1/responses gets two tokens more."""
    for endpoint in WHOLE:
        client_of(fake).complete(new_request(endpoint))
    (completion,), (chat,) = fake.received("/v1/completions"), fake.received("/v1/chat/completions")
    usual = {"model": MODEL, "max_tokens": 6, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    assert completion == {**usual, "prompt": list(PROMPT)}
    assert chat == {**usual, "messages": MESSAGES}
    (response,), (messages,) = fake.received("/v1/responses"), fake.received("/v1/messages")
    assert response == {"model": MODEL, "input": MESSAGES, "max_output_tokens": 8, "temperature": 0, "store": False}
    assert (messages["system"], messages["messages"]) == (MESSAGES[0]["content"], MESSAGES[1:])


@pytest.mark.parametrize("field", ["cache_salt", "extra_key"])
@pytest.mark.parametrize("endpoint", Endpoint)
def test_every_endpoint_gets_the_salt_and_the_priority(endpoint: Endpoint, field: str, fake: FakeSglang) -> None:
    """The salt has the field that the server knows. Fields without a value are left out."""
    client = client_of(fake)
    client.salt_field = field
    client.complete(new_request(endpoint, cache_salt="red", priority=3))
    client.complete(new_request(endpoint))
    (_, reported), (_, without) = fake.bodies[0], fake.bodies[-1]
    assert (reported[field], reported["priority"]) == ("red", 3)
    assert not {"cache_salt", "extra_key", "priority"} & set(without)


@pytest.mark.parametrize("endpoint", Endpoint)
def test_an_adapter_is_named_by_its_own_name_and_with_the_base_model(endpoint: Endpoint, fake: FakeSglang) -> None:
    """Completions get the plain name and the others BASE:ADAPTER, so that both are tested."""
    fake.adapters["tenant"] = "/adapters/A"
    got = client_of(fake).complete(new_request(endpoint, model="tenant"))
    assert [token.id for token in got.tokens] == answer("/adapters/A", PROMPT, 6)
    reported = fake.bodies[0][1]
    assert reported.get("lora_path") == ("tenant" if endpoint is Endpoint.GENERATE else None)
    assert reported.get("model") == {Endpoint.GENERATE: None, Endpoint.COMPLETIONS: "tenant"}.get(
        endpoint, f"{MODEL}:tenant"
    )


@pytest.mark.parametrize("first", Endpoint)
@pytest.mark.parametrize("then", Endpoint)
def test_a_hit_is_read_from_every_endpoint(first: Endpoint, then: Endpoint, fake: FakeSglang) -> None:
    """A prompt hits what any endpoint computed under the same salt, and nothing under another."""
    client = client_of(fake)
    client.complete(new_request(first, cache_salt="red"))
    assert client.complete(new_request(then, cache_salt="blue")).cached_tokens == 0
    assert client.complete(new_request(then, cache_salt="red")).cached_tokens == len(PROMPT) // 16 * 16


@pytest.mark.parametrize("endpoint", WHOLE)
def test_a_count_that_is_not_reported_is_none(endpoint: Endpoint) -> None:
    """A server without the report leaves out all counts, and a missing count is not zero."""
    assert complete(endpoint, ServerBehaviour(reports=False)).cached_tokens is None


@pytest.mark.parametrize("endpoint", WHOLE)
def test_a_refusal_is_a_refusal(endpoint: Endpoint) -> None:
    """The refusal has the server's status."""
    with pytest.raises(RequestRefused, match="signed 64-bit") as refused:
        complete(endpoint, priority=IMPOSSIBLE_PRIORITY)
    assert refused.value.status == 400


@pytest.mark.parametrize("endpoint", [Endpoint.COMPLETIONS, Endpoint.CHAT])
def test_scores_stop_strings_and_patterns_are_those_of_generate(endpoint: Endpoint, fake: FakeSglang) -> None:
    """Logprobs are read in the form of either endpoint."""
    client = client_of(fake)
    got = client.complete(new_request(endpoint, options=ResponseOptions(logprobs=True)))
    assert {(token.logprob, token.gap) for token in got.tokens} == {(-0.5, 1.5)}
    stop = got.text[2]
    ended = client.complete(new_request(endpoint, options=ResponseOptions(stop=(stop,), pattern="[a-z]*")))
    assert (ended.finish_reason, ended.text[-1]) == ("stop", stop)
    reported = fake.bodies[-1][1]
    assert (reported["regex"], reported["ignore_eos"]) == ("[a-z]*", False)


@pytest.mark.parametrize("option", [{"answers": 2}, {"prompt_logprobs": True}])
def test_what_no_endpoint_can_answer_is_refused_by_the_client(option: dict[str, Any], fake: FakeSglang) -> None:
    """The request is refused without being sent."""
    with pytest.raises(RequestRefused):
        client_of(fake).complete(new_request(Endpoint.CHAT, options=ResponseOptions(**option)))
    assert fake.bodies == []


@pytest.mark.parametrize("endpoint", [Endpoint.RESPONSES, Endpoint.MESSAGES])
def test_a_text_without_exact_tokens_is_not_compared(endpoint: Endpoint) -> None:
    """The generated tokens are unknown."""
    with pytest.raises(NotExact, match="6 tokens has 6 characters, and 12 tokens"):
        complete(endpoint, ServerBehaviour(wordy=True))


def test_another_answer_is_malformed(fake: FakeSglang, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the endpoint and quotes the response."""
    monkeypatch.setattr("support.fake_sglang.as_endpoint_answer", lambda *_: {"choices": [{"text": "?"}]})
    for endpoint in WHOLE:
        with pytest.raises(MalformedAnswer, match=endpoint.value):
            client_of(fake).complete(new_request(endpoint))


def test_endpoints_are_present_if_they_answer_as_generate_does() -> None:
    """Each capability has its evidence, whether it is present or not."""
    found = found_at(ServerBehaviour()).capabilities
    assert all(found[endpoint].present for endpoint in (Capability.CHAT, *ENDPOINTS))
    assert "/v1/responses gives the same answer as /generate" in found[Capability.RESPONSES_ENDPOINT].evidence
    found = found_at(ServerBehaviour(reports=False)).capabilities
    assert not any(found[endpoint].present for endpoint in ENDPOINTS)
    assert "cached tokens None" in found[Capability.ENDPOINTS].evidence
    assert found[Capability.CHAT].present
    found = found_at(ServerBehaviour(wordy=True)).capabilities
    assert [bool(found[endpoint].present) for endpoint in ENDPOINTS] == [True, True, False, False]
    assert (
        "12 tokens" in found[Capability.MESSAGES_ENDPOINT].evidence
        or "16 tokens" in found[Capability.MESSAGES_ENDPOINT].evidence
    )
    found = found_at(ServerBehaviour(chats=False)).capabilities
    assert not any(found[endpoint].present for endpoint in (Capability.CHAT, *ENDPOINTS))
    assert "404" in found[Capability.ENDPOINTS].evidence


ODD = {"priority": IMPOSSIBLE_PRIORITY}
STEM = (("stem", 40), ("question", 5))


@pytest.mark.parametrize("drop", [None, ("/v1/messages", "priority")])
def test_a_script_uses_every_endpoint(drop: tuple[str, str] | None, tmp_path: Path) -> None:
    """The script finds the endpoint that ignores a field which the others refuse."""
    sent = [ask(*STEM, chat=True, endpoint=endpoint, adapter="tenant", salt="red") for endpoint in Endpoint]
    odd = [
        msgspec.structs.replace(ask(*STEM, chat=True, endpoint=endpoint), **ODD)
        for endpoint in (Endpoint.CHAT, Endpoint.MESSAGES)
    ]
    story = (put("A"), *(burst(one) for one in (*sent, *odd)))
    case = report_samples.case(
        engine="sglang",
        workload=msgspec.to_builtins(Workload(story)),
        recipes={"A": {"seed": 1, "rank": 4}},
        engine_config={"url": "http://somewhere"},
        failing_request=len(sent) + 1,
        failure_class=FailureClass.API,
        first_difference=None,
    )
    with serving(drops=() if drop is None else (drop,)) as fake:
        code, said = run_script(tmp_path, case, fake.url)
    assert code == (0 if drop is None else 1), said
    for endpoint in WHOLE:
        reported = fake.received(endpoint.value)[0]
        assert re.fullmatch(f"(base:)?tenant-{'[0-9a-f]{6}'}", reported["model"]), reported
