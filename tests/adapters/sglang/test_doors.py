"""The doors of SGLang's server, against a stand-in: what each is asked, what is read, and which are there."""

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

from coldproof.adapters.common.redact import KEY_VARIABLE
from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.doors import DOOR_CAPABILITIES, IMPOSSIBLE_PRIORITY, Door
from coldproof.adapters.protocol.engine import MalformedAnswer, RequestRefused
from coldproof.adapters.protocol.requests import Completion, CompletionRequest, ResponseOptions
from coldproof.adapters.server.doors import NotExact
from coldproof.adapters.server.engine import ServerEngine
from coldproof.adapters.server.probe_doors import TURNS
from coldproof.adapters.sglang.client import SglangClient
from coldproof.adapters.sglang.doors import WHOLE
from coldproof.adapters.sglang.spec import attach
from coldproof.harness.case.reproducer.curl import CurlScript
from coldproof.harness.workload.steps import Workload
from coldproof.reports.schema.verdict import FailureClass

MESSAGES = [{"role": message.role, "content": message.content} for message in TURNS]
PROMPT = rendered(MESSAGES)
DOORS = (Capability.DOORS, *(DOOR_CAPABILITIES[door] for door in (Door.GENERATE, Door.RESPONSES, Door.MESSAGES)))


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the developer's key."""
    monkeypatch.delenv(KEY_VARIABLE, raising=False)


@pytest.fixture
def fake() -> Iterator[FakeSglang]:
    """A server with all doors."""
    with serving() as made:
        yield made


def client_of(fake: FakeSglang) -> SglangClient:
    """A client of a stand-in that reports cached tokens at all doors."""
    made = SglangClient(fake.url, alive=lambda: True)
    made.base_model, made.counts_at_doors = MODEL, fake.behaviour.reports
    return made


def asked(door: Door | None, **changes: Any) -> CompletionRequest:
    """A chat of four messages at a door, as the runner sends it."""
    messages = None if door is not None and door.takes_ids else TURNS
    facts = {"model": MODEL, "prompt": PROMPT, "max_tokens": 6, "messages": messages, "door": door}
    return CompletionRequest(**{**facts, **changes})


def complete(door: Door | None, behaviour: ServerBehaviour | None = None, **changes: Any) -> Completion:
    """The answer to one request at a door of a new server."""
    with serving(behaviour) as made:
        return client_of(made).complete(asked(door, **changes))


def found_at(behaviour: ServerBehaviour) -> ServerEngine:
    """What attaching finds on a server with these manners."""
    with serving(behaviour) as made:
        return attach(made.url, adapter_for=lambda _: None)


@pytest.mark.parametrize("door", [None, *Door])
def test_the_same_prompt_has_the_same_answer_at_every_door(door: Door | None) -> None:
    """Tokens, text and the reason for the end, and none of it was cached."""
    got, expected = complete(door), answer("", PROMPT, 6)
    assert [token.id for token in got.tokens] == expected
    assert (got.text, got.finish_reason, got.cached_tokens) == ("".join(map(chr, expected)), "length", 0)


def test_each_door_is_asked_in_its_own_words(fake: FakeSglang) -> None:
    """Greedy everywhere, to the end where there is a field for it, and for two tokens more where two are taken away."""
    for door in WHOLE:
        client_of(fake).complete(asked(door))
    (completion,), (chat,) = fake.received("/v1/completions"), fake.received("/v1/chat/completions")
    usual = {"model": MODEL, "max_tokens": 6, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    assert completion == {**usual, "prompt": list(PROMPT)}
    assert chat == {**usual, "messages": MESSAGES}
    (response,), (messages,) = fake.received("/v1/responses"), fake.received("/v1/messages")
    assert response == {"model": MODEL, "input": MESSAGES, "max_output_tokens": 8, "temperature": 0, "store": False}
    assert (messages["system"], messages["messages"]) == (MESSAGES[0]["content"], MESSAGES[1:])


@pytest.mark.parametrize("field", ["cache_salt", "extra_key"])
@pytest.mark.parametrize("door", Door)
def test_every_door_is_told_the_salt_and_the_priority(door: Door, field: str, fake: FakeSglang) -> None:
    """By the name of the salt that the server knows. What is not given is not said."""
    client = client_of(fake)
    client.salt_field = field
    client.complete(asked(door, cache_salt="red", priority=3))
    client.complete(asked(door))
    (_, told), (_, untold) = fake.bodies[0], fake.bodies[-1]
    assert (told[field], told["priority"]) == ("red", 3)
    assert not {"cache_salt", "extra_key", "priority"} & set(untold)


@pytest.mark.parametrize("door", Door)
def test_an_adapter_is_named_by_its_own_name_and_with_the_base_model(door: Door, fake: FakeSglang) -> None:
    """The first at completions, the second elsewhere, so that both are tested; the answer is the adapter's."""
    fake.adapters["tenant"] = "/adapters/A"
    got = client_of(fake).complete(asked(door, model="tenant"))
    assert [token.id for token in got.tokens] == answer("/adapters/A", PROMPT, 6)
    told = fake.bodies[0][1]
    assert told.get("lora_path") == ("tenant" if door is Door.GENERATE else None)
    assert told.get("model") == {Door.GENERATE: None, Door.COMPLETIONS: "tenant"}.get(door, f"{MODEL}:tenant")


@pytest.mark.parametrize("first", Door)
@pytest.mark.parametrize("then", Door)
def test_a_hit_is_read_from_every_door(first: Door, then: Door, fake: FakeSglang) -> None:
    """On what any door computed under the same salt, and not under another."""
    client = client_of(fake)
    client.complete(asked(first, cache_salt="red"))
    assert client.complete(asked(then, cache_salt="blue")).cached_tokens == 0
    assert client.complete(asked(then, cache_salt="red")).cached_tokens == len(PROMPT) // 16 * 16


@pytest.mark.parametrize("door", WHOLE)
def test_a_count_that_is_not_told_is_none(door: Door) -> None:
    """Missing is not zero: a server without the report leaves out all counts."""
    assert complete(door, ServerBehaviour(reports=False)).cached_tokens is None


@pytest.mark.parametrize("door", WHOLE)
def test_a_refusal_is_a_refusal(door: Door) -> None:
    """With the server's status."""
    with pytest.raises(RequestRefused, match="signed 64-bit") as refused:
        complete(door, priority=IMPOSSIBLE_PRIORITY)
    assert refused.value.status == 400


@pytest.mark.parametrize("door", [Door.COMPLETIONS, Door.CHAT])
def test_scores_stop_strings_and_patterns_are_those_of_generate(door: Door, fake: FakeSglang) -> None:
    """Logprobs are read from the form of either route."""
    client = client_of(fake)
    got = client.complete(asked(door, surface=ResponseOptions(logprobs=True)))
    assert {(token.logprob, token.gap) for token in got.tokens} == {(-0.5, 1.5)}
    stop = got.text[2]
    ended = client.complete(asked(door, surface=ResponseOptions(stop=(stop,), pattern="[a-z]*")))
    assert (ended.finish_reason, ended.text[-1]) == ("stop", stop)
    told = fake.bodies[-1][1]
    assert (told["regex"], told["ignore_eos"]) == ("[a-z]*", False)


@pytest.mark.parametrize("option", [{"answers": 2}, {"prompt_logprobs": True}])
def test_what_no_door_can_answer_is_refused_here(option: dict[str, Any], fake: FakeSglang) -> None:
    """And never sent."""
    with pytest.raises(RequestRefused):
        client_of(fake).complete(asked(Door.CHAT, surface=ResponseOptions(**option)))
    assert fake.bodies == []


@pytest.mark.parametrize("door", [Door.RESPONSES, Door.MESSAGES])
def test_a_text_without_exact_tokens_is_not_compared(door: Door) -> None:
    """Nobody knows which tokens were generated."""
    with pytest.raises(NotExact, match="6 tokens has 6 characters, and 12 tokens"):
        complete(door, ServerBehaviour(wordy=True))


def test_another_answer_is_malformed(fake: FakeSglang, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the door and quotes what came."""
    monkeypatch.setattr("support.fake_sglang.answered", lambda *_: {"choices": [{"text": "?"}]})
    for door in WHOLE:
        with pytest.raises(MalformedAnswer, match=door.value):
            client_of(fake).complete(asked(door))


def test_the_doors_are_there_if_they_answer_as_generate_does() -> None:
    """Each says what was seen, whether it is there or not."""
    found = found_at(ServerBehaviour()).capabilities
    assert all(found[door].present for door in (Capability.CHAT, *DOORS))
    assert "/v1/responses gives the same answer as /generate" in found[Capability.RESPONSES_DOOR].evidence
    found = found_at(ServerBehaviour(reports=False)).capabilities
    assert not any(found[door].present for door in DOORS)
    assert "cached tokens None" in found[Capability.DOORS].evidence
    assert found[Capability.CHAT].present
    found = found_at(ServerBehaviour(wordy=True)).capabilities
    assert [bool(found[door].present) for door in DOORS] == [True, True, False, False]
    assert (
        "12 tokens" in found[Capability.MESSAGES_DOOR].evidence
        or "16 tokens" in found[Capability.MESSAGES_DOOR].evidence
    )
    found = found_at(ServerBehaviour(chats=False)).capabilities
    assert not any(found[door].present for door in (Capability.CHAT, *DOORS))
    assert "404" in found[Capability.DOORS].evidence


ODD = {"priority": IMPOSSIBLE_PRIORITY}
STEM = (("stem", 40), ("question", 5))


@pytest.mark.parametrize("drop", [None, ("/v1/messages", "priority")])
def test_a_script_asks_every_door(drop: tuple[str, str] | None, tmp_path: Path) -> None:
    """And finds the one that ignores a field that the others refuse."""
    sent = [ask(*STEM, chat=True, door=door, adapter="tenant", salt="red") for door in Door]
    odd = [msgspec.structs.replace(ask(*STEM, chat=True, door=door), **ODD) for door in (Door.CHAT, Door.MESSAGES)]
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
    for door in WHOLE:
        told = fake.received(door.value)[0]
        assert re.fullmatch(f"(base:)?tenant-{'[0-9a-f]{6}'}", told["model"]), told
    commands = "\n".join(step.commands for step in CurlScript(case).steps())
    assert all(door.value in commands for door in WHOLE)
    assert "/v1/models" in commands
    assert "/inference/v1/generate" not in commands
