"""One generator of ONNX Runtime GenAI, used for one request after the other.

A request goes on with the sequence of the one before it, as far as both agree. Its documentation shows both ways: a
chat appends each turn behind the last answer ("continuous decoding"), and a program rewinds to a system prompt. With
`again`, it rewinds by the last token of an answer, too, and appends it again with the turn.
Coldproof's scripts contain this file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


class Continued:
    """The generator and its sequence. `make` returns a new generator. `caching`: whether a request goes on with it."""

    def __init__(self, make: Callable[[], Any], *, caching: bool, again: bool = False) -> None:
        self.make, self.caching, self.again = make, caching, again
        self.generator: Any = None

    def begin(self, prompt: Sequence[int]) -> int:
        """Give it a prompt, and return how many of its tokens have KV already."""
        kept = self.sequence() if self.caching else []
        if self.generator is None or not self.caching:
            self.generator = self.make()
        known = kept[:-1] if self.again else kept
        shared = common_prefix(known, prompt[:-1])  # the scores behind the last token have to be computed
        if shared < len(kept):
            self.generator.rewind_to(shared)
        self.generator.append_tokens([list(prompt[shared:])])
        return max(0, min(shared, len(kept) - 1))  # the last token of an answer has no KV yet

    def next(self) -> int:
        """Generate a token."""
        self.generator.generate_next_token()
        return int(self.generator.get_next_tokens()[0])

    def sequence(self) -> list[int]:
        """Return the tokens that it has."""
        return [] if self.generator is None else [int(token) for token in self.generator.get_sequence(0)]

    def rewind(self) -> None:
        """Forget all tokens."""
        if self.generator is not None and self.sequence():
            self.generator.rewind_to(0)


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens two sequences share at their beginning."""
    pairs = zip(one, other, strict=False)
    return next((number for number, (left, right) in enumerate(pairs) if left != right), min(len(one), len(other)))
