"""SGLang 0.5.23: a model's name from /v1/models that is an adapter selects the base model. Exit status 1: the bug."""

import sys
from unittest.mock import MagicMock

from sglang.srt.entrypoints.openai.protocol import CompletionRequest
from sglang.srt.entrypoints.openai.serving_completions import OpenAIServingCompletion

manager = MagicMock(served_model_name="base")
manager.lora_registry.get_all_adapters.return_value = {"tenant": None}  # what /v1/models lists beside the base model
completions = OpenAIServingCompletion(manager, MagicMock(completion_template_name=None))
adapters = []
for model in ("tenant", "base:tenant"):
    request = CompletionRequest(model=model, prompt=[1, 2, 3])
    adapters.append(completions._convert_to_internal_request(request)[0].lora_path)
print(f"adapters of requests to `tenant` and `base:tenant`: {adapters}; expected: ['tenant', 'tenant']")
sys.exit(adapters != ["tenant", "tenant"])
