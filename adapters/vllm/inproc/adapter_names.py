"""Maps adapter names to LoRA requests for the in-process engine, as vLLM's server does.

A block's hash depends on the LoRARequest, so its fields must equal the server's (entrypoints/openai/models/serving.py).
"""

from __future__ import annotations

import itertools
from typing import Any

from coldproof.adapters.protocol.engine import RequestRefused
from coldproof.adapters.vllm.inproc.setup import vllm_module


class AdapterNames:
    """The loaded adapters: served name -> LoRARequest."""

    def __init__(self, engine: Any, base_model: str) -> None:
        self.engine, self.base_model = engine, base_model
        self.loaded: dict[str, Any] = {}
        self._ids = itertools.count(1)

    def lora_request(self, model: str) -> Any:
        """Return the LoRARequest of a served name; None for the base model. Raises RequestRefused for unknown names."""
        if model == self.base_model:
            return None
        if model not in self.loaded:
            raise RequestRefused(404, f"The model `{model}` does not exist.")
        return self.loaded[model]

    def load(self, name: str, path: str, *, in_place: bool) -> None:
        """Load or replace an adapter. Raises RequestRefused, with the server's status, if the server would refuse."""
        if not name or not path:
            raise RequestRefused(400, "Both 'lora_name' and 'lora_path' must be provided.")
        if name == self.base_model:
            raise RequestRefused(400, f"The lora adapter '{name}' conflicts with a served base model.")
        if not in_place and name in self.loaded:
            raise RequestRefused(400, f"The lora adapter '{name}' has already been loaded.")
        number = self.loaded[name].lora_int_id if name in self.loaded else next(self._ids)
        request = vllm_module("lora.request").LoRARequest(
            lora_name=name, lora_int_id=number, lora_path=path, load_inplace=in_place
        )
        try:
            self.engine.add_lora(request)
        except Exception as problem:
            missing = type(problem).__name__ == "LoRAAdapterNotFoundError"
            raise RequestRefused(404 if missing else 500, str(problem)) from problem
        self.loaded[name] = request

    def unload(self, name: str) -> None:
        """Remove a name. As in the server, the engine is not informed. Raises RequestRefused for an unknown name."""
        if name not in self.loaded:
            raise RequestRefused(404, f"The lora adapter '{name}' cannot be found.")
        del self.loaded[name]
