"""Keep a sequence under as many tokens as its KV cache has.

Where the last token of an answer was not drafted, the model has not computed its KV: it is left out of the key.
"""

from __future__ import annotations

from coldproof.adapters.spec.repair import edit, part

RELEASES = "==0.32.2"


def install() -> None:
    """Plant the repair."""
    edit(
        part("mlx_lm.server", "ResponseGenerator"),
        "_serve_single",
        (
            "        # Save the KV cache again\n",
            "        if draft_model is not None:\n"
            "            del cache_key[cache[0].offset :]\n"
            "        # Save the KV cache again\n",
        ),
    )
