"""vLLM 0.32.0: a request to /v1/messages is served without its priority. Exit status 1: as described."""

import asyncio, sys
from unittest.mock import AsyncMock, MagicMock

from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.serve.engine.protocol import ErrorInfo, ErrorResponse

body = {"model": "base", "max_tokens": 4, "messages": [{"role": "user", "content": "hello"}], "priority": 1}
serving = AnthropicServingMessages.__new__(AnthropicServingMessages)
serving._merge_inline_system = False
error = ErrorResponse(error=ErrorInfo(message="no engine", type="none", code=500))
serving.create_chat_completion = AsyncMock(return_value=error)
http = MagicMock(json=AsyncMock(return_value=body))
asyncio.run(serving.create_messages(AnthropicMessagesRequest(**body), http))
priority = serving.create_chat_completion.await_args.args[0].priority
print(f"priority of the chat request that is made of it: {priority}; expected: 1")
sys.exit(priority != 1)
