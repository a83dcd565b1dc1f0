"""Look a prompt up by the same length as it is saved and loaded.

`align_to_block_size` already leaves a token out. What is offered beyond the local hit is never less than nothing.
"""

from __future__ import annotations

from coldproof.adapters.spec.repair import edit, part

RELEASES = "==0.32.0"


def install() -> None:
    """Plant the repair."""
    connector = part("vllm.distributed.kv_transfer.kv_connector.v1.example_connector", "ExampleConnector")
    for name, tokens in (("_found_match_for_prompt", "prompt_token_ids"), ("get_num_new_matched_tokens", "token_ids")):
        edit(connector, name, (f"len({tokens}) - 1", f"len({tokens})"))
    edit(
        connector,
        "get_num_new_matched_tokens",
        (
            "return num_tokens_to_check - num_computed_tokens, False",
            "return max(num_tokens_to_check - num_computed_tokens, 0), False",
        ),
    )
