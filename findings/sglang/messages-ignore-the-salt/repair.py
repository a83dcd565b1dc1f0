"""Read the cache salt and the priority of a request to /v1/messages, and hand them to the chat request.

The fields are those of the other endpoints. The chat request checks them, so that values of another type are refused.
"""

from __future__ import annotations

from typing import Any

from coldproof.adapters.spec.repair import edit, part, wrap

RELEASES = "==0.5.23"
FIELDS = ("cache_salt", "priority")


def install() -> None:
    """Plant the repair."""
    serving = part("sglang.srt.entrypoints.anthropic.serving", "AnthropicServing")
    edit(
        serving,
        "_convert_to_chat_completion_request",
        ("(**request_data)", '(**request_data, **anthropic_request.__dict__.get("fields_of_chats", {}))'),
    )

    @wrap(serving, "handle_messages", "chat_request = self._convert_to_chat_completion_request(request)")
    async def _(original: Any, self: Any, request: Any, raw_request: Any) -> Any:
        body = await raw_request.json()
        request.__dict__["fields_of_chats"] = {name: body[name] for name in FIELDS if name in body}
        return await original(self, request, raw_request)
