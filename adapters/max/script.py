"""MAX's server for scripts, with a model that the script writes."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

from coldproof.adapters.common.tiny_model import gemma_tensors, qwen_tensors, write_model_files
from coldproof.adapters.spec.script.client import Event, Sent
from coldproof.adapters.spec.script.given import FILES, MODEL, SALTS, STALL_SECONDS, START_SEED
from coldproof.adapters.spec.script.http import Started, events, has_ended, post
from coldproof.adapters.spec.script.openai import parts_of


class MaxServer(Started):
    """A server of MAX."""

    def __init__(self) -> None:
        tensors = gemma_tensors if "sliding_window" in MODEL else qwen_tensors
        write_model_files(FILES / "model", MODEL, tensors(MODEL, START_SEED))
        super().__init__()

    def answers(self, sent: Sent, patience: float = STALL_SECONDS) -> Iterator[Event]:
        """Send a request and yield its answer."""
        return self.stream(sent, sent["salt"] if SALTS else None, patience)

    def cold(self, sent: Sent) -> Iterator[Event]:
        """Send a request with a salt that no request before had."""
        return self.stream(sent, secrets.token_hex(16), STALL_SECONDS)

    def stream(self, sent: Sent, salt: str | None, patience: float) -> Iterator[Event]:
        """Yield the events of an answer."""
        body = {"model": "base", "prompt": sent["ids"], "max_tokens": sent["tokens"], "temperature": 0}
        body |= {"ignore_eos": True, "return_token_ids": True, "stream": True}
        body["stream_options"] = {"include_usage": True}
        if salt is not None:
            body["cache_salt"] = salt
        for event in events(self.url + "/v1/completions", body, patience):
            yield from parts_of(event)

    def reset(self) -> None:
        """Empty the prefix cache."""
        post(self.url + "/reset_prefix_cache", {})

    def ended(self) -> bool:
        """Return whether the server has ended."""
        return has_ended(self.url)
