"""Compute the last token of a prompt again that is kept whole.

A hit of the whole prompt is cut by one token, as a hit on a longer sequence is. A sequence that cannot be cut is none.
"""

from __future__ import annotations

from coldproof.adapters.spec.repair import edit, part

RELEASES = "==0.32.2"


def install() -> None:
    """Plant the repair."""
    edit(
        part("mlx_lm.models.cache", "LRUPromptCache"),
        "fetch_nearest_cache",
        (
            "        return copy.deepcopy(cache_entry.prompt_cache), []\n",
            "        if not can_trim_prompt_cache(cache_entry.prompt_cache):\n"
            "            return None, tokens\n"
            "        cache = copy.deepcopy(cache_entry.prompt_cache)\n"
            "        trim_prompt_cache(cache, 1)\n"
            "        return cache, tokens[-1:]\n",
        ),
    )
