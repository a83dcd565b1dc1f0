"""Finds out which kinds of request a server takes beside plain completions: chats, priorities, aborts, surfaces."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from adapters.base import (
    Abort,
    Capability,
    Completion,
    CompletionRequest,
    Message,
    RequestRefused,
    Stage,
    Support,
    Surface,
)
from adapters.openai_http import Wire

PROMPT = tuple(random.Random("surface").choices(range(33, 126), k=24))
HELLO = (Message("system", "Be brief."), Message("user", "Hello."))
KINDS = (
    Capability.CHAT,
    Capability.PRIORITY,
    Capability.ABORT,
    Capability.PROMPT_LOGPROBS,
    Capability.SEVERAL_ANSWERS,
    Capability.STOP_STRINGS,
    Capability.STRUCTURED_OUTPUT,
)


def probe_surface(wire: Wire, model: str, found: dict[Capability, Support]) -> None:
    """Try each kind once with a short prompt; what comes back incomplete counts as absent."""
    if found[Capability.TOKEN_PROMPTS].present is not True:
        found |= dict.fromkeys(KINDS, Support(False, "token-id prompts are refused"))
        return

    def ask(**changes: Any) -> Completion:
        return wire.complete(CompletionRequest(**{"model": model, "prompt": PROMPT, "max_tokens": 4, **changes}))

    probe_chat(wire, model, found, ask)
    attempt(found, Capability.PRIORITY, "a request of priority 1 was accepted", lambda: ask(priority=1))
    answer = attempt(found, Capability.ABORT, "", lambda: ask(max_tokens=200, abort=Abort(after_tokens=1)))
    if answer is not None:
        aborted = answer.aborted is Stage.DECODE
        found[Capability.ABORT] = Support(aborted, f"the client hung up after {len(answer.tokens)} of 200 tokens")
    answer = attempt(found, Capability.PROMPT_LOGPROBS, "", lambda: ask(surface=Surface(prompt_logprobs=True)))
    if answer is not None:
        count = len(answer.prompt_logprobs or ())
        found[Capability.PROMPT_LOGPROBS] = Support(count == len(PROMPT), f"{count} for {len(PROMPT)} prompt tokens")
    # So short that no engine computes it in chunks: vLLM 0.32.0 on CPU dies of a seeded sampled request in chunks.
    answer = attempt(found, Capability.SEVERAL_ANSWERS, "", lambda: ask(prompt=PROMPT[:4], surface=Surface(answers=2)))
    if answer is not None:
        found[Capability.SEVERAL_ANSWERS] = Support(len(answer.others) == 1, f"{1 + len(answer.others)} answers of 2")
    probe_stop(found, ask)
    answer = attempt(found, Capability.STRUCTURED_OUTPUT, "", lambda: ask(surface=Surface(pattern="[ab]{3}")))
    if answer is not None:
        count = len(answer.tokens)
        found[Capability.STRUCTURED_OUTPUT] = Support(count > 0, f"{count} tokens for the pattern [ab]{{3}}")


def probe_chat(wire: Wire, model: str, found: dict[Capability, Support], ask: Callable[..., Completion]) -> None:
    """Chats count only where the prompt's ids are known before and after: the oracle is asked for those."""
    rendered = attempt(found, Capability.CHAT, "", lambda: wire.render(model, HELLO))
    if rendered is None:
        return
    answer = attempt(found, Capability.CHAT, "", lambda: ask(messages=HELLO, prompt=rendered))
    if answer is not None:
        same = answer.prompt == rendered
        told = "the same" if same else "others or none"
        words = f"/tokenize renders {len(rendered)} tokens, the chat answer tells {told}"
        found[Capability.CHAT] = Support(same and bool(answer.tokens), words)


def probe_stop(found: dict[Capability, Support], ask: Callable[..., Completion]) -> None:
    """The last character of a greedy answer as a stop string: the same answer then has to end there or before."""
    plain = ask(max_tokens=16)
    stop = Surface(stop=(plain.text[-1:] or " ",))
    answer = attempt(found, Capability.STOP_STRINGS, "", lambda: ask(surface=stop, max_tokens=32))
    if answer is not None:
        words = f"finish reason {answer.finish_reason!r} after {len(answer.tokens)} of 32 tokens"
        found[Capability.STOP_STRINGS] = Support(answer.finish_reason == "stop", words)


def attempt(
    found: dict[Capability, Support], capability: Capability, evidence: str, action: Callable[[], Any]
) -> Any | None:
    """Do something; note the capability as present with `evidence`, or absent with the server's refusal."""
    try:
        result = action()
    except RequestRefused as problem:
        found[capability] = Support(False, f"HTTP {problem.status}: {problem.body[:200]}")
        return None
    found[capability] = Support(True, evidence)
    return result
