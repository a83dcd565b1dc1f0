"""ToyLM: stands for an engine's own package in docs/adding-an-engine.md. It does not import Coldproof.

A token's "KV" is a digest of the tokens before it and of the adapter's file; the next token is drawn from it. Blocks
of eight tokens are kept by content, so that a prompt which begins as another did is not computed again.
"""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path

BLOCK = 8
LONGEST = 2048
FIRST, MANY = 33, 94


class ToyLM:
    """An engine to which requests are submitted; each step gives every one of them a token."""

    def __init__(self, *, reuse: bool) -> None:
        self.reuse = reuse
        self.adapters: dict[str, bytes] = {}
        self.blocks: dict[tuple[bytes, ...], bytes] = {}
        self.running: dict[int, Request] = {}
        self.looked_up = self.found = 0
        self.numbers = itertools.count()

    def load(self, name: str, folder: str) -> None:
        """Read an adapter. Raises FileNotFoundError."""
        self.adapters[name] = (Path(folder) / "adapter_model.safetensors").read_bytes()

    def unload(self, name: str) -> None:
        """Unload an adapter. Raises KeyError."""
        del self.adapters[name]

    def submit(self, prompt: list[int], adapter: str | None = None) -> int:
        """Begin a request. Raises ValueError for a prompt that does not fit, KeyError for an unknown adapter."""
        if len(prompt) >= LONGEST:
            raise ValueError(f"{len(prompt)} tokens do not fit into {LONGEST}")
        content = b"" if adapter is None else self.adapters[adapter]
        number = next(self.numbers)
        self.running[number] = Request(prompt, content)
        self.look_up(self.running[number])
        return number

    def look_up(self, request: Request) -> None:
        """Take the blocks of a prompt that are cached, never its last token."""
        for end in range(BLOCK, len(request.tokens), BLOCK):
            kept = self.blocks.get(request.key(end)) if self.reuse else None
            if kept is None:
                break
            request.state, request.done = kept, end
        request.reused = request.done
        self.looked_up += len(request.tokens)
        self.found += request.reused

    def step(self) -> dict[int, int]:
        """Return the next token of every request."""
        return {number: self.advance(request) for number, request in self.running.items()}

    def advance(self, request: Request) -> int:
        """Compute the state of the new tokens, keep whole blocks, and return the next token."""
        while request.done < len(request.tokens):
            token = request.tokens[request.done].to_bytes(4, "little")
            request.state = hashlib.blake2b(request.state + token + request.content, digest_size=8).digest()
            request.done += 1
            if request.done % BLOCK == 0:
                self.blocks.setdefault(request.key(request.done), request.state)
        request.tokens.append(FIRST + int.from_bytes(request.state, "little") % MANY)
        return request.tokens[-1]

    def reused(self, number: int) -> int:
        """Return the number of prompt tokens that came from the cache."""
        return self.running[number].reused

    def finish(self, number: int) -> None:
        """Remove a request that is complete or aborted."""
        del self.running[number]

    def clear(self) -> None:
        """Remove all blocks."""
        self.blocks.clear()


class Request:
    """A running request."""

    def __init__(self, prompt: list[int], content: bytes) -> None:
        self.tokens, self.content = list(prompt), content
        self.state = b""
        self.done = self.reused = 0

    def key(self, end: int) -> tuple[bytes, ...]:
        """Return the key of the block that ends here: the adapter and all tokens up to there."""
        return (self.content, b"".join(token.to_bytes(4, "little") for token in self.tokens[:end]))
