"""What the worker remembers of each request: its tokens, its blocks, and the digests that it ought to find there."""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec
import numpy as np

from adapters.fingerprint.digest import Digests, chain, link
from adapters.provenance import Writer

REMEMBERED = 4_000_000  # digests whose writers can be told: 32 MB


class Written(msgspec.Struct):
    """Digests that a request wrote under one identity, from one position on."""

    request: str
    adapter: str | None
    content: str | None
    version: int
    first: int
    digests: Digests


class Sequence:
    """A request as the scheduler tells of it, bit by bit."""

    def __init__(self, new: Any) -> None:
        self.name: str = new.req_id
        self.prompt = tuple(new.prompt_token_ids)
        self.output: list[int] = []
        self.blocks: list[list[int]] = [list(ids) for ids in new.block_ids]
        self.computed: int = new.num_computed_tokens
        self.sampling: Any = new.sampling_params
        self.lora: Any = new.lora_request
        self.seed: int | None = None
        self.digests: Digests = np.empty(0, np.uint64)  # of all its tokens, as computed cold under `seed`
        self.told_wrong = False

    @property
    def length(self) -> int:
        """Tokens that are known."""
        return len(self.prompt) + len(self.output)

    def token(self, position: int) -> int:
        """The token at a position that is known."""
        return self.prompt[position] if position < len(self.prompt) else self.output[position - len(self.prompt)]

    def resume(self, new_blocks: Any, *, resumed: bool, computed: int, outputs: int) -> None:
        """Take in what the scheduler says of a request that it told of before: blocks, how much is computed, how many
        of its answer's tokens still hold.
        """
        self.computed = computed
        del self.output[outputs:]
        self.digests = self.digests[: self.length]
        if resumed:
            self.blocks = [list(ids) for ids in new_blocks]
        elif new_blocks is not None:
            for mine, ids in zip(self.blocks, new_blocks, strict=True):
                mine.extend(ids)

    def expected(self, seed: int) -> Digests:
        """The digests of all its tokens under an identity; what was computed before is kept."""
        if seed != self.seed:
            self.seed, self.digests = seed, np.empty(0, np.uint64)
        known = self.digests
        if len(known) < self.length:
            before = int(known[-1]) if len(known) else seed
            rest = [self.token(i) for i in range(len(known), self.length)]
            known = np.concatenate([known, self.behind(rest, len(known), before)])
        self.digests = known
        return known

    def behind(self, tokens: list[int], start: int, before: int) -> Digests:
        """The digests of tokens behind a digest, under this request's seed."""
        assert self.seed is not None
        if len(tokens) == 1:
            return np.array([link(tokens[0], position=start, before=before, seed=self.seed)], np.uint64)
        return chain(tokens, start=start, before=before, seed=self.seed)


class Memory:
    """Who wrote what, for as long as anybody may ask."""

    def __init__(self) -> None:
        self.written: deque[Written] = deque()
        self.count = 0

    def note(self, one: Written) -> None:
        """Remember a write, and forget the oldest ones."""
        self.written.append(one)
        self.count += len(one.digests)
        while self.count > REMEMBERED:
            self.count -= len(self.written.popleft().digests)

    def writer(self, digest: int) -> Writer | None:
        """Who last wrote a digest, if that is still known."""
        for one in reversed(self.written):
            at = np.flatnonzero(one.digests == np.uint64(digest))
            if len(at):
                return Writer(
                    request=one.request,
                    position=one.first + int(at[0]),
                    adapter=one.adapter,
                    content=one.content,
                    version=one.version,
                )
        return None
