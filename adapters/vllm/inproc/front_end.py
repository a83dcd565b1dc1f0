"""The methods of vLLM's front end, for the engine in this process.

Routes of vLLM's server that reset, pause or wake an engine call `AsyncLLM`, which clears what the front end itself
caches and then calls the engine core. `LLMEngine` has its own versions of some of these methods, and none of a pause.
`AsyncLLM`'s run here, so that what they forget shows in process as well (vllm#47147: a pause forgot the images).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from coldproof.adapters.vllm.inproc.process import vllm_module

ASYNC = "_async"


class FrontEnd:
    """What these methods need of an `AsyncLLM`: the renderer, and a client of the engine core."""

    logger_manager = None  # statistics of sleeps, which nobody reads here

    def __init__(self, engine: Any) -> None:
        self.renderer = engine.renderer
        self.engine_core = CoreClient(engine.engine_core)

    def call(self, name: str, *arguments: Any, **named: Any) -> Any:
        """Return the result of one of `AsyncLLM`'s methods. Raises what vLLM raises."""
        method = getattr(vllm_module("v1.engine.async_llm").AsyncLLM, name)
        return asyncio.run(method(self, *arguments, **named))


class CoreClient:
    """An engine core in this process, by the names of vLLM's asynchronous client: `sleep_async` calls `sleep`."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        plain = name.removesuffix(ASYNC)
        if plain == name:
            raise AttributeError(name)
        owner = self.client if hasattr(self.client, plain) else self.client.engine_core  # the client has no pauses

        async def call(*arguments: Any, **named: Any) -> Any:
            return getattr(owner, plain)(*arguments, **named)

        return call
