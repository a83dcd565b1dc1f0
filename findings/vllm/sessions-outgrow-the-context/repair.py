"""Refuse an input with which its session would not fit into the context.

What counts is what the session holds when the input's turn comes: its tokens, inputs that wait, and what their answers
may have. The check stands where a refusal is an error of this request alone.
"""

from __future__ import annotations

from typing import Any

from coldproof.adapters.spec.repair import part, wrap

RELEASES = "==0.32.0"


def install() -> None:
    """Plant the repair."""

    @wrap(part("vllm.v1.engine.core", "EngineCore"), "preprocess_add_request", "return req, request.current_wave")
    def _(original: Any, self: Any, request: Any) -> Any:
        session = self.scheduler.requests.get(request.request_id)
        if session is not None and request.resumable and request.prompt_token_ids:
            idle = session.status.name == "WAITING_FOR_STREAMING_REQ"
            held = session.num_tokens - 1 if idle else session.num_prompt_tokens + session.max_tokens - 1
            for update in filter(None, session.streaming_queue or ()):
                held += len(update.prompt_token_ids or ()) + update.max_tokens - 1
            most = self.vllm_config.model_config.max_model_len
            if held + len(request.prompt_token_ids) >= most:
                raise ValueError(f"the session would be longer than the context of {most} tokens")
        return original(self, request)
