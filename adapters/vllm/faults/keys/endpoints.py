"""Salts and adapters that get lost, or are changed, at one endpoint of the server only."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from coldproof.adapters.spec.fault import Patch, collector
from coldproof.adapters.vllm.faults.engine_parts import module
from coldproof.adapters.vllm.faults.patching import acted, after, around

FAULTS, fault = collector("endpoints")

CELLS = ("default",)  # whose server has these endpoints and requests that use them
TOKEN_IDS, RESPONSES = "generate-tokens-", "resp_"  # begin the ids of these endpoints' requests


def change_salt_at(patch: Patch, endpoint: str, change: Callable[[str], str | None]) -> None:
    """Use `change(salt)` as the salt of the requests of an endpoint; None means no salt."""

    @around(patch, module("v1.engine.async_llm").AsyncLLM, "generate")
    def generate(original: Any, this: Any, prompt: Any, params: Any, request_id: str, *rest: Any, **named: Any) -> Any:
        salt = prompt.get("cache_salt") if isinstance(prompt, dict) and request_id.startswith(endpoint) else None
        if salt is not None and (changed := change(salt)) != salt:
            acted()
            salted = {} if changed is None else {"cache_salt": changed}
            prompt = {name: value for name, value in prompt.items() if name != "cache_salt"} | salted
        return original(this, prompt, params, request_id, *rest, **named)


@fault("ENTRY-1", stands_for="vllm#46688", cells=CELLS)
def the_messages_route_has_no_salt(patch: Patch) -> None:
    """The endpoint for messages does not pass the salt of a request on."""

    @after(patch, module("entrypoints.anthropic.serving").AnthropicServingMessages, "_build_base_request")
    def made(request: Any, *_arguments: Any) -> None:
        if request.cache_salt is not None:
            acted()
            request.cache_salt = None


@fault("ENTRY-1", stands_for="vllm PR#47696", cells=CELLS)
def the_token_route_drops_the_salt(patch: Patch) -> None:
    """The endpoint for token ids does not pass the salt of a request on."""
    change_salt_at(patch, TOKEN_IDS, lambda _: None)


@fault("ENTRY-1", stands_for="a salt that is hashed before it is sent, at one endpoint only", cells=CELLS)
def the_token_route_hashes_the_salt(patch: Patch) -> None:
    """The endpoint for token ids passes a hash of the salt on, so that it shares nothing with the other endpoints."""
    change_salt_at(patch, TOKEN_IDS, lambda salt: hashlib.sha256(salt.encode()).hexdigest())


@fault(
    "ENTRY-1", stands_for="vllm PR#47696", cells=CELLS, rare="only between salts that differ in case, at two endpoints"
)
def the_responses_route_ignores_case(patch: Patch) -> None:
    """The endpoint for responses passes salts on in lower case."""
    change_salt_at(patch, RESPONSES, str.casefold)


@fault("ENTRY-1", stands_for="a request type without the name of the adapter", cells=CELLS)
def the_responses_route_loses_the_adapter(patch: Patch) -> None:
    """The endpoint for responses answers every request as the base model."""

    @around(patch, module("v1.engine.async_llm").AsyncLLM, "generate")
    def generate(original: Any, this: Any, prompt: Any, params: Any, request_id: str, *rest: Any, **named: Any) -> Any:
        if request_id.startswith(RESPONSES) and named.get("lora_request") is not None:
            acted()
            named["lora_request"] = None
        return original(this, prompt, params, request_id, *rest, **named)
