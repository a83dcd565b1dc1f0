"""ToyLM: stands for an engine's own package in docs/adding-an-engine.md, and knows nothing of Coldproof.

A token's "KV" is a digest of the tokens before it and of the adapter's file; the next token is drawn from it. Blocks of
eight tokens are kept by what they hold, so a prompt that begins as another did is not computed again.
"""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path

BLOCK = 8
LONGEST = 2048
FIRST, MANY = 33, 94


class ToyLM:
    """Requests are submitted; each step gives every one of them a token."""

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
        """Forget it. Raises KeyError."""
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
        """Take what blocks there are of a prompt, never its last token."""
        for end in range(BLOCK, len(request.tokens), BLOCK):
            kept = self.blocks.get(request.key(end)) if self.reuse else None
            if kept is None:
                break
            request.state, request.done = kept, end
        request.reused = request.done
        self.looked_up += len(request.tokens)
        self.found += request.reused

    def step(self) -> dict[int, int]:
        """The next token of every request."""
        return {number: self.advance(request) for number, request in self.running.items()}

    def advance(self, request: Request) -> int:
        """Compute what has no state yet, keep whole blocks, draw a token."""
        while request.done < len(request.tokens):
            token = request.tokens[request.done].to_bytes(4, "little")
            request.state = hashlib.blake2b(request.state + token + request.content, digest_size=8).digest()
            request.done += 1
            if request.done % BLOCK == 0:
                self.blocks.setdefault(request.key(request.done), request.state)
        request.tokens.append(FIRST + int.from_bytes(request.state, "little") % MANY)
        return request.tokens[-1]

    def reused(self, number: int) -> int:
        """Tokens of a prompt that were not computed."""
        return self.running[number].reused

    def finish(self, number: int) -> None:
        """A request is over, or not wanted any more."""
        del self.running[number]

    def clear(self) -> None:
        """Forget all blocks."""
        self.blocks.clear()


class Request:
    """One that runs."""

    def __init__(self, prompt: list[int], content: bytes) -> None:
        self.tokens, self.content = list(prompt), content
        self.state = b""
        self.done = self.reused = 0

    def key(self, end: int) -> tuple[bytes, ...]:
        """What the block that ends here holds: all tokens up to there, under this adapter."""
        return (self.content, b"".join(token.to_bytes(4, "little") for token in self.tokens[:end]))
