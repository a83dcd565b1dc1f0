"""SGLang 0.5.23: a request to /v1/messages loses its cache salt and priority. Exit status 1: as described."""

import asyncio, sys
from unittest.mock import AsyncMock, MagicMock

from sglang.srt.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from sglang.srt.entrypoints.anthropic.serving import AnthropicServing

body = {"model": "base", "max_tokens": 4, "messages": [{"role": "user", "content": "hello"}]}
body |= {"cache_salt": "tenant", "priority": 1}
serving = AnthropicServing(MagicMock())
serving._handle_non_streaming = AsyncMock()
asyncio.run(serving.handle_messages(AnthropicMessagesRequest(**body), MagicMock(json=AsyncMock(return_value=body))))
chat = serving._handle_non_streaming.await_args.args[0]  # the chat request that is made of it
print(f"salt and priority: {chat.cache_salt}, {chat.priority}; expected: tenant, 1")
sys.exit((chat.cache_salt, chat.priority) != ("tenant", 1))
