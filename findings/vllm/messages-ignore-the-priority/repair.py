"""Read the priority of a request to /v1/messages, and hand it to the chat request that is made of it.

The field is that of the other endpoints. The chat request checks it, so that a value which they refuse is refused here.
"""

from __future__ import annotations

from typing import Any

from coldproof.adapters.spec.repair import edit, part, wrap

RELEASES = "==0.32.0"


def install() -> None:
    """Plant the repair."""
    import pydantic

    serving = part("vllm.entrypoints.anthropic.serving", "AnthropicServingMessages")
    edit(
        serving,
        "_build_base_request",
        (
            "cache_salt=anthropic_request.cache_salt,",
            'cache_salt=anthropic_request.cache_salt, priority=getattr(anthropic_request, "priority", 0),',
        ),
    )

    @wrap(serving, "create_messages", "chat_req = self.to_chat_completion_request(")
    async def _(original: Any, self: Any, request: Any, raw_request: Any = None) -> Any:
        body = await raw_request.json() if raw_request is not None else {}
        if "priority" in body:
            request.__dict__["priority"] = body["priority"]  # the model has no such field
        try:
            return await original(self, request, raw_request)
        except pydantic.ValidationError as problem:
            return self.create_error_response(str(problem))
