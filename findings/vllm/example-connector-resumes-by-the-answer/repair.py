"""Load a resumed request under the tokens of its prompt.

Only prompts are saved, and the lookup that offered the load was for the prompt.
"""

from __future__ import annotations

from coldproof.adapters.spec.repair import edit, part

RELEASES = "==0.32.0"


def install() -> None:
    """Plant the repair."""
    edit(
        part("vllm.distributed.kv_transfer.kv_connector.v1.example_connector", "ExampleConnector"),
        "build_connector_meta",
        ("token_ids = request.all_token_ids[:total_tokens]", "token_ids = request.prompt_token_ids"),
    )
