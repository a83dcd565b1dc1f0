"""Scores a text with the model itself, in one forward pass beside the paused loop: no page, no cache, no scheduler."""

from __future__ import annotations

import importlib
from typing import Any

from coldproof.adapters.protocol.requests import Completion, CompletionRequest, Token

PAGED = "paged|"  # the prefix that continuous batching gives the name of the model's attention


def score(model: Any, request: CompletionRequest) -> Completion:
    """Return the logprob of each prompt token, that of the best token at its position, and the best next token.

    Call it only while the loop is paused: it changes the model's attention for the time of the pass.
    """
    torch = importlib.import_module("torch")
    paged = str(model.config._attn_implementation)
    model.set_attn_implementation(paged.removeprefix(PAGED))
    try:
        with torch.inference_mode():
            tokens = torch.tensor([request.prompt], device=model.device)
            scores = model(input_ids=tokens, use_cache=False).logits[0].float().log_softmax(-1)
    finally:
        model.set_attn_implementation(paged)
    best, ids = (column.tolist() for column in scores.max(-1))
    own = scores[:-1].gather(1, tokens[0, 1:, None])[:, 0].tolist()
    return Completion(
        tokens=(Token(ids[-1], 0.0, best[-1]),),
        finish_reason="length",
        cached_tokens=0,
        prompt_logprobs=(None, *own),
        prompt_best=(None, *best[:-1]),
    )
