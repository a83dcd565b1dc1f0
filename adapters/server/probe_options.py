"""Probe which requests a server accepts beside plain completions: chats, priorities, aborts, response options."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.protocol.engine import EngineDied, MalformedAnswer, RequestRefused, printable
from coldproof.adapters.protocol.requests import Abort, Completion, CompletionRequest, Message, ResponseOptions, Stage
from coldproof.adapters.server.client import HttpClient

LENGTH = 24  # tokens of a prompt
HELLO = (Message("system", "Be brief."), Message("user", "Hello."))
PROBED = (
    Capability.CHAT,
    Capability.PRIORITY,
    Capability.ABORT,
    Capability.PROMPT_LOGPROBS,
    Capability.SEVERAL_ANSWERS,
    Capability.STOP_STRINGS,
    Capability.STRUCTURED_OUTPUT,
)


def probe_response_options(client: HttpClient, model: str, found: dict[Capability, Support]) -> None:
    """Try each capability of PROBED once with a short prompt. An incomplete answer means that it is absent.

    Each prompt is a new one. With a hit, a fault of the prefix cache would end the server here and not in a test, where
    it is a violation (vLLM 0.8.5: prompt logprobs of a cached prompt end the engine).
    """
    if found[Capability.TOKEN_PROMPTS].present is not True:
        found |= dict.fromkeys(PROBED, Support(False, "token-id prompts are refused"))
        return

    def send(**changes: Any) -> Completion:
        return client.complete(
            CompletionRequest(**{"model": model, "prompt": new_prompt(), "max_tokens": 4, **changes})
        )

    probe_chat(client, model, found, send)
    attempt(found, Capability.PRIORITY, "a request of priority 1 was accepted", lambda: send(priority=1))
    answer = attempt(found, Capability.ABORT, "", lambda: send(max_tokens=200, abort=Abort(after_tokens=1)))
    if answer is not None:
        aborted = answer.aborted is Stage.DECODE
        found[Capability.ABORT] = Support(aborted, f"the client disconnected after {len(answer.tokens)} of 200 tokens")
    answer = attempt(found, Capability.PROMPT_LOGPROBS, "", lambda: send(options=ResponseOptions(prompt_logprobs=True)))
    if answer is not None:
        count = len(answer.prompt_logprobs or ())
        how = f"{count} logprobs for {LENGTH} prompt tokens"
        found[Capability.PROMPT_LOGPROBS] = Support(count == LENGTH, how)
    # The prompt is too short for chunked prefill: vLLM 0.32.0 on CPU crashes on a seeded sampled request in chunks.
    answer = attempt(
        found, Capability.SEVERAL_ANSWERS, "", lambda: send(prompt=new_prompt()[:4], options=ResponseOptions(answers=2))
    )
    if answer is not None:
        found[Capability.SEVERAL_ANSWERS] = Support(len(answer.others) == 1, f"{1 + len(answer.others)} answers of 2")
    probe_stop(found, send)
    answer = attempt(found, Capability.STRUCTURED_OUTPUT, "", lambda: send(options=ResponseOptions(pattern="[ab]{3}")))
    if answer is not None:
        count = len(answer.tokens)
        found[Capability.STRUCTURED_OUTPUT] = Support(count > 0, f"{count} tokens for the pattern [ab]{{3}}")


def new_prompt() -> tuple[int, ...]:
    """Return a prompt that no server has seen."""
    return tuple(random.SystemRandom().choices(range(33, 126), k=LENGTH))


def probe_chat(
    client: HttpClient, model: str, found: dict[Capability, Support], send: Callable[..., Completion]
) -> None:
    """Probe chats. /tokenize and the answer must report the same prompt ids, because the oracle needs these ids."""
    rendered = attempt(found, Capability.CHAT, "", lambda: client.render(model, HELLO))
    if rendered is None:
        return
    answer = attempt(found, Capability.CHAT, "", lambda: send(messages=HELLO, prompt=rendered))
    if answer is not None:
        same = answer.prompt == rendered
        reported = "the same" if same else "others or none"
        how = f"/tokenize returns {len(rendered)} prompt tokens, the chat answer reports {reported}"
        found[Capability.CHAT] = Support(same and bool(answer.tokens), how)


def probe_stop(found: dict[Capability, Support], send: Callable[..., Completion]) -> None:
    """Probe stop strings: send the last character of a greedy answer as a stop string. The answer must end there."""
    prompt = new_prompt()
    plain = send(prompt=prompt, max_tokens=16)
    stop = ResponseOptions(stop=(plain.text[-1:] or " ",))
    answer = attempt(found, Capability.STOP_STRINGS, "", lambda: send(prompt=prompt, options=stop, max_tokens=32))
    if answer is not None:
        how = f"finish reason {answer.finish_reason!r} after {len(answer.tokens)} of 32 tokens"
        found[Capability.STOP_STRINGS] = Support(answer.finish_reason == "stop", how)


def attempt(
    found: dict[Capability, Support], capability: Capability, evidence: str, action: Callable[[], Any]
) -> Any | None:
    """Call `action` and return its result. Record the capability as present, or as absent with the server's error."""
    try:
        result = action()
    except RequestRefused as problem:
        found[capability] = refusal(problem)
        return None
    except MalformedAnswer as problem:
        found[capability] = Support(False, str(problem))
        return None
    except EngineDied as problem:
        failed = [
            f"{one.value} ({tried.evidence})" for one, tried in found.items() if tried.evidence.startswith("HTTP 5")
        ]
        if failed:
            raise EngineDied(f"{problem}, after requests that tried: {', '.join(failed)}") from problem
        raise
    found[capability] = Support(True, evidence)
    return result


def refusal(problem: RequestRefused) -> Support:
    """Return that a capability is absent, with the server's error."""
    return Support(False, f"HTTP {problem.status}: {printable(problem.body, 200)}")
