"""Hand the adapter that a request to /v1/responses names to the engine.

The name was checked: it is that of a loaded adapter, alone or behind the base model's. A request that goes on after the
call of a tool has the adapter of the one before.
"""

from __future__ import annotations

from coldproof.adapters.spec.repair import edit, part

RELEASES = "==0.5.23"


def install() -> None:
    """Plant the repair."""
    serving = part("sglang.srt.entrypoints.openai.serving_responses", "OpenAIServingResponses")
    named = "request.model in self._known_model_names() - {self.tokenizer_manager.served_model_name}"
    lora = f"request.model if {named} else request.model and self._resolve_lora_path(request.model, None)"
    held = "session_id=adapted_request.session_id,"
    edit(serving, "create_responses", ("rid=request.request_id,\n", f"rid=request.request_id, lora_path={lora},\n"))
    edit(serving, "_generate_with_builtin_tools", (held, f"{held} lora_path=adapted_request.lora_path,"))
