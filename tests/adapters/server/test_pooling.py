"""Requests for vectors are sent to their routes with all fields, and the probes find which tasks a server pools."""

from __future__ import annotations

from typing import Any

import pytest
from support.fake_reply import MODEL, Fault, ServerBehaviour, vector
from support.fake_server import FakeServer, serving

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.engine import MalformedAnswer, RequestRefused
from coldproof.adapters.protocol.pooling import TASK_CAPABILITIES, Task
from coldproof.adapters.protocol.requests import CompletionRequest, ResponseOptions
from coldproof.adapters.server.client import HttpClient
from coldproof.adapters.server.pooling import PATHS, body
from coldproof.adapters.server.probes import probe

PROMPT = tuple(range(40, 80))
TEXT = "".join(map(chr, PROMPT))
POOLS = tuple(PATHS.values())


def new_request(task: Task, **changes: Any) -> CompletionRequest:
    """Return a request for a pooled answer."""
    facts = {"model": MODEL, "prompt": PROMPT, "max_tokens": 0, "options": ResponseOptions(pooled=task)}
    return CompletionRequest(**{**facts, **changes})


def client_of(fake: FakeServer) -> HttpClient:
    """Return a client of a stand-in that stays alive."""
    return HttpClient(fake.url, alive=lambda: True)


@pytest.mark.parametrize("task", Task)
def test_every_route_gets_the_salt_and_the_priority(task: Task) -> None:
    """Fields without a value are left out."""
    said = body(new_request(task, cache_salt="red", priority=3), task)
    sent: dict[str, Any] = {"input": list(PROMPT)}
    first, second = TEXT[:20], TEXT[20:]
    sent |= {
        Task.SCORE: {"text_1": first, "text_2": second},
        Task.RERANK: {"query": first, "documents": [second]},
        Task.COSINE: {"text_1": "!", "text_2": TEXT},
    }.get(task, {})
    if task.of_texts:
        del sent["input"]
    assert said.items() >= sent.items()
    assert (said["cache_salt"], said["priority"]) == ("red", 3)
    assert not {"cache_salt", "priority"} & set(body(new_request(task), task))


@pytest.mark.parametrize("task", Task)
def test_a_vector_is_read_from_each_route(task: Task) -> None:
    """There is one vector for the prompt or one per token. No route reports a count or a finish reason."""
    with serving(ServerBehaviour(pools=POOLS)) as fake:
        progress: list[int] = []
        answer = client_of(fake).complete(new_request(task), progress.append)
        (seen,) = fake.received(f"POST {PATHS[task]}")
    ends = range(1, len(PROMPT) + 1) if task.of_each_token else (len(PROMPT),)
    values = 1 if task.of_texts else None
    assert answer.pooled == tuple(tuple(vector(MODEL, PROMPT[:end])[:values]) for end in ends)
    assert (answer.tokens, answer.cached_tokens, answer.finish_reason) == ((), None, None)
    assert seen.body["model"] == MODEL
    assert progress == [1]


@pytest.mark.parametrize("task", Task)
@pytest.mark.parametrize("text", ["{}", '{"data": []}', '{"data": [{"embedding": "AAA="}]}', "<html>"])
def test_an_answer_of_another_form_is_malformed(task: Task, text: str) -> None:
    """The error says what was expected."""
    with (
        serving(ServerBehaviour(bodies=dict.fromkeys(POOLS, text))) as fake,
        pytest.raises(MalformedAnswer, match="vectors"),
    ):
        client_of(fake).complete(new_request(task))


def test_a_route_that_is_not_there_refuses() -> None:
    """The refusal has the server's status."""
    with serving() as fake, pytest.raises(RequestRefused) as refused:
        client_of(fake).complete(new_request(Task.EMBED))
    assert refused.value.status == 404


@pytest.mark.parametrize("task", Task)
def test_the_probes_find_what_a_server_pools(task: Task) -> None:
    """A server that does not generate has its task, prompts of token ids, salts and resets, and no counts."""
    tasks = {Task.EMBED, task} if task is Task.COSINE else {task}
    pools = tuple(PATHS[one] for one in tasks)
    with serving(ServerBehaviour(fault=Fault.REFUSES, pools=pools, chats=task.of_texts)) as fake:
        found = probe(client_of(fake), spawned=True, adapter_path=None).capabilities
    present = {capability for capability, support in found.items() if support.present}
    assert present & set(TASK_CAPABILITIES.values()) == {TASK_CAPABILITIES[one] for one in tasks}
    assert (Capability.POOLING in present) is not task.of_each_token
    assert present >= {Capability.TOKEN_PROMPTS, Capability.CACHE_SALT, Capability.CACHE_RESET}
    assert not present & {Capability.TOKEN_OUTPUTS, Capability.CACHED_TOKENS, Capability.CHAT}


@pytest.mark.parametrize(
    ("behaviour", "lacks", "why"),
    [
        ({"pools": POOLS}, Capability.SCORES, "two embeddings"),
        ({"pools": POOLS}, Capability.RANKINGS, "two embeddings"),
        ({"pools": ("/score",)}, Capability.COSINES, "no embedding"),
        ({"pools": ("/pooling", "/score")}, Capability.COSINES, "no embedding"),
        ({"pools": ("/score",), "chats": False}, Capability.SCORES, "404"),
        ({"pools": POOLS, "chats": False}, Capability.COSINES, "404"),
    ],
)
def test_a_score_is_a_class_or_a_cosine(behaviour: dict[str, Any], lacks: Capability, why: str) -> None:
    """A score is the class of two texts or the cosine of two embeddings, if the tokens of a text are known."""
    with serving(ServerBehaviour(fault=Fault.REFUSES, **behaviour)) as fake:
        found = probe(client_of(fake), spawned=True, adapter_path=None).capabilities
    assert found[lacks].present is False
    assert why in found[lacks].evidence


def test_no_vectors_are_requested_from_a_server_that_generates() -> None:
    """A server that generates text is tested as one."""
    with serving(ServerBehaviour(pools=POOLS)) as fake:
        found = probe(client_of(fake), spawned=True, adapter_path=None).capabilities
        assert not [one for one in fake.seen if one.line.partition(" ")[2] in POOLS]
    assert found[Capability.POOLING].present is False
    assert found[Capability.TOKEN_OUTPUTS].present is True
