"""Probe which pooled answers a server gives that generates no tokens."""

from __future__ import annotations

import secrets

from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.protocol.engine import MalformedAnswer, RequestRefused
from coldproof.adapters.protocol.pooling import OF_ONE_VECTOR, TASK_CAPABILITIES, Task
from coldproof.adapters.protocol.requests import CompletionRequest, ResponseOptions
from coldproof.adapters.server.client import HttpClient
from coldproof.adapters.server.pooling import PATHS
from coldproof.adapters.server.probe_options import refusal

PROMPT = tuple(range(40, 60))
EMBEDS = (Capability.EMBEDDINGS, Capability.TOKEN_EMBEDDINGS)
COSINE = Support(False, "a score is the cosine of two embeddings here, not the class of two texts")
NO_COSINE = Support(False, "a score is no cosine here: the server has no embedding of a prompt")
NOT_TEXT = Support(False, "two texts are not exactly the tokens of a prompt: no token of this model is a character")
NO_COUNTS = "the routes for pooled answers report no counts"
SALTED = "salts are fields of the routes for pooled answers; they report no counts that show an effect"


def probe_pooling(
    client: HttpClient, model: str, *, is_vllm: bool, found: dict[Capability, Support]
) -> dict[Capability, Support]:
    """Return the capabilities of pooled answers, and those that depend on them; none for a server that generates."""
    if found[Capability.TOKEN_PROMPTS].present is True:
        return {}
    tasks: dict[Capability, Support] = {}
    for task, needed in TASK_CAPABILITIES.items():
        tasks[needed] = another_score(task, tasks) or probe_task(client, model, task)
    if not any(support.present for support in tasks.values()):
        return tasks
    ones = [tasks[needed] for needed in OF_ONE_VECTOR]
    return {
        **tasks,
        Capability.POOLING: next((one for one in ones if one.present), ones[0]),
        Capability.TOKEN_PROMPTS: Support(True, "a list of token ids as input was accepted"),
        Capability.CACHED_TOKENS: Support(False, NO_COUNTS),
        Capability.CACHE_SALT: Support(is_vllm, SALTED if is_vllm else NO_COUNTS),
        Capability.CACHE_RESET: probe_reset(client),
    }


def another_score(task: Task, found: dict[Capability, Support]) -> Support | None:
    """Return that a score means something else for this server's model, if so: its routes would answer all the same."""
    if task.of_a_pair and any(found[one].present for one in EMBEDS):
        return COSINE
    return NO_COSINE if task is Task.COSINE and not found[Capability.EMBEDDINGS].present else None


def probe_task(client: HttpClient, model: str, task: Task) -> Support:
    """Return whether a server answers a prompt with vectors, also under a salt."""
    response_options = ResponseOptions(pooled=task)
    salt = f"probe-{secrets.token_hex(8)}"
    try:
        if task.of_texts and client.tokens_of(model, "".join(map(chr, PROMPT))) != PROMPT:
            return NOT_TEXT
        answer = client.complete(
            CompletionRequest(model=model, prompt=PROMPT, max_tokens=0, cache_salt=salt, options=response_options)
        )
    except RequestRefused as problem:
        return refusal(problem)
    except MalformedAnswer as problem:
        return Support(False, str(problem))
    rows = answer.pooled or ()
    wanted = task.rows(len(PROMPT))
    how = f"{PATHS[task]} answered {len(rows)} vectors to a prompt of {len(PROMPT)} tokens"
    return Support(len(rows) == wanted, how)


def probe_reset(client: HttpClient) -> Support:
    """Return whether the server confirms a reset."""
    try:
        done, said = client.reset()
    except RequestRefused as problem:
        return Support(False, f"{client.reset_path}: HTTP {problem.status}")
    return Support(done, f"{client.reset_path} answered {said[:60].strip()}")
