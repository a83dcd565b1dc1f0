"""Errors that the fingerprint worker raises in the place of vLLM's own worker: they are the engine's.

Whatever else our worker raises is a fault of ours. `adapters/protocol/own_code.py` knows this file by its name.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import NoReturn


class EncoderCacheMissError(RuntimeError):
    """The scheduler relies on an output of the encoder that was not computed, or was freed."""


def encoder_cache_miss(name: str) -> NoReturn:
    """Raise what `_gather_mm_embeddings` of vLLM's model runner raises."""
    raise EncoderCacheMissError(f"Encoder cache miss for {name}.")


class PromptTooLongError(ValueError):
    """The scheduler sends a prompt for which the model's context has no room."""


def check_length(tokens: int, longest: int) -> None:
    """Raise what `InputBatch.add_request` of vLLM's model runner raises if a prompt exceeds the context."""
    if tokens > longest:
        raise PromptTooLongError(f"could not broadcast input array from shape ({tokens},) into shape ({longest},)")


class DraftsWithoutTokensError(KeyError):
    """The scheduler sends drafts of a request of which the step computes nothing."""


def check_drafts(drafts: Iterable[str], computed: Container[str]) -> None:
    """Raise what `_calc_spec_decode_metadata` of vLLM's model runner raises: it looks the request up in the batch."""
    for name in drafts:
        if name not in computed:
            raise DraftsWithoutTokensError(name)
