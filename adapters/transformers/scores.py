"""The scores of a prompt's tokens, from the model's own forward pass: continuous batching reports none.

Only an engine without block sharing offers them. It gives cold answers, which are judged by nothing that it reports
about prompts; an engine under test must not be credited with what it does not compute.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import msgspec

PAGED = "paged|"  # continuous batching puts it before the name of the model's attention


class PromptScores(msgspec.Struct, frozen=True):
    """The logprob of each prompt token and of the best candidate there. None for the first token."""

    own: tuple[float | None, ...]
    best: tuple[float | None, ...]


def prompt_scores(model: Any, prompt: Sequence[int]) -> PromptScores:
    """Return the scores of a prompt under the adapter that is on. Call this only while the loop is paused."""
    torch = importlib.import_module("torch")
    paged = model.config._attn_implementation
    ids = torch.tensor([list(prompt)], device=model.device)
    model.set_attn_implementation(paged.removeprefix(PAGED))
    try:
        with torch.no_grad():
            table = model(ids, use_cache=False).logits[0, :-1].float().log_softmax(-1)
    finally:
        model.set_attn_implementation(paged)
    own = table.gather(1, ids[0, 1:, None]).squeeze(1)
    return PromptScores((None, *own.tolist()), (None, *table.max(-1).values.tolist()))
