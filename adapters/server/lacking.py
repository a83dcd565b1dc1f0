"""For servers that report no sizes and lack several kinds of requests (TensorRT-LLM, LMDeploy)."""

from __future__ import annotations

import msgspec

from coldproof.adapters.protocol.engine import RequestRefused
from coldproof.adapters.protocol.requests import CompletionRequest
from coldproof.adapters.protocol.shape import EngineShape


class Lacks(msgspec.Struct, frozen=True, kw_only=True):
    """Why a server cannot be sent each kind of request."""

    chats: str
    salts: str
    prompt_scores: str
    priorities: str

    def refuse(self, request: CompletionRequest) -> None:
        """Raise RequestRefused for a request of one of these kinds."""
        for lacked, why in (
            (request.messages is not None, self.chats),
            (request.cache_salt is not None, self.salts),
            (request.surface.prompt_logprobs, self.prompt_scores),
            (request.priority != 0, self.priorities),
        ):
            if lacked:
                raise RequestRefused(501, why)


def unreported_shape(max_model_tokens: int) -> EngineShape:
    """Return the shape of a server that reports its context length only. A prefix need not be found there."""
    return EngineShape(
        block_size=None,
        pool_blocks=None,
        max_model_tokens=max_model_tokens,
        adapter_slots=None,
        prefix_caching=None,
        uniform=False,
    )
