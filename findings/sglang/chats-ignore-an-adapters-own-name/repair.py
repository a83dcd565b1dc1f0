"""Take a model's name that is the name of a loaded adapter for this adapter.

`/v1/models` lists the adapter under this name, and `/v1/responses` accepts it. The name of the base model comes first.
"""

from __future__ import annotations

from coldproof.adapters.spec.repair import edit, part

RELEASES = "==0.5.23"


def install() -> None:
    """Plant the repair."""
    edit(
        part("sglang.srt.entrypoints.openai.serving_base", "OpenAIServingBase"),
        "_parse_model_parameter",
        (
            'if ":" not in model:',
            "served = self.tokenizer_manager.served_model_name\n"
            "    if model != served and model in self.tokenizer_manager.lora_registry.get_all_adapters():\n"
            "        return served, model\n"
            '    if ":" not in model:',
        ),
    )
