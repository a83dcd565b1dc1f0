"""SGLang 0.5.23: a request to /v1/responses is served without the adapter that it names. Exit status 1: the bug."""

import asyncio, sys
from unittest.mock import AsyncMock, MagicMock

from sglang.srt.entrypoints.openai.protocol import MessageProcessingResult, ResponsesRequest
from sglang.srt.entrypoints.openai.serving_responses import OpenAIServingResponses
from sglang.srt.runtime_context import get_context

manager, prompt = MagicMock(served_model_name="base"), [1, 2, 3]
manager.lora_registry.get_all_adapters.return_value = {"tenant": None}
get_context().override_server_args().install()  # the configuration of a server
responses = OpenAIServingResponses(manager, MagicMock())
rendered = MessageProcessingResult("", prompt, *[None] * 4, [])
responses._make_request = AsyncMock(return_value=([], [prompt], [prompt], rendered))
asyncio.run(responses.create_responses(ResponsesRequest(model="base:tenant", input="hello")))
adapter = manager.generate_request.call_args.args[0].lora_path  # of the request that the engine gets
print(f"adapter of a request to `base:tenant`: {adapter}; expected: tenant")
sys.exit(adapter != "tenant")
