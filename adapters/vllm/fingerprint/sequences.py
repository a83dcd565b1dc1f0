"""The requests of the fingerprint worker, with their expected digests, and the history of its writes."""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec
import numpy as np

from coldproof.adapters.protocol.provenance import Writer
from coldproof.adapters.vllm.fingerprint.digest import Digests, chain, chain_one, row_digests
from coldproof.adapters.vllm.fingerprint.images import Item, items_of, with_images

REMEMBERED = 4_000_000  # digests whose writers are known: 32 MB


class WriteRecord(msgspec.Struct):
    """Digests that a request wrote from position `first` on, with one adapter content and weight version."""

    request: str
    adapter: str | None
    content: str | None
    version: int
    first: int
    digests: Digests


class Sequence:
    """A request as described by the scheduler's outputs so far."""

    def __init__(self, new: Any) -> None:
        self.name: str = new.req_id
        self.items = items_of(new)
        self.prompt = prompt_of(new, self.items)
        # With vLLM's model runner V2, a request that resumes after a preemption is new again, with its answer so far.
        self.output: list[int] = list(getattr(new, "prefill_token_ids", None) or ())[len(self.prompt) :]
        self.blocks: list[list[int]] = [list(ids) for ids in new.block_ids]  # one list per KV-cache group
        self.computed: int = new.num_computed_tokens
        self.sampling: Any = new.sampling_params  # None for pooled answers
        self.pooling: Any = getattr(new, "pooling_params", None)
        self.states: Digests = np.zeros(len(self.prompt) if self.pooling else 0, np.uint64)  # by position
        self.first_computed = self.computed  # no position before it has a state here
        self.lora: Any = new.lora_request
        self.seed: int | None = None
        self.digests: Digests = np.empty(0, np.uint64)  # of all its tokens, as a cold engine computes them with `seed`
        self.wrong_read_recorded = False

    @property
    def length(self) -> int:
        """Return the number of known tokens: prompt and output."""
        return len(self.prompt) + len(self.output)

    def update(self, new_blocks: Any, *, resumed: bool, computed: int, outputs: int) -> None:
        """Apply the scheduler's update of a known request.

        `resumed`: `new_blocks` replace the old ones. `computed`: the number of computed tokens. `outputs`: the number
        of output tokens that are still valid.
        """
        self.computed = computed
        del self.output[outputs:]
        self.digests = self.digests[: self.length]
        if resumed:
            self.blocks = [list(ids) for ids in new_blocks]
        elif new_blocks is not None:
            for blocks, ids in zip(self.blocks, new_blocks, strict=True):
                blocks.extend(ids)

    def expected(self, seed: int) -> Digests:
        """Return the expected digests of all tokens for a seed. Earlier results are reused."""
        if seed != self.seed:
            self.seed, self.digests = seed, np.empty(0, np.uint64)
        known = self.digests
        if len(known) < self.length:
            before = int(known[-1]) if len(known) else seed
            rest = [*self.prompt[len(known) :], *self.output[max(0, len(known) - len(self.prompt)) :]]
            known = np.concatenate([known, self.digests_after(rest, len(known), before)])
        self.digests = known
        return known

    def digests_after(self, tokens: list[int], start: int, before: int) -> Digests:
        """Return the digests of tokens from position `start` on, which follow the digest `before`."""
        assert self.seed is not None
        if len(tokens) == 1:
            return np.array([chain_one(tokens[0], position=start, before=before, seed=self.seed)], np.uint64)
        return chain(tokens, start=start, before=before, seed=self.seed)


def prompt_of(new: Any, items: tuple[Item, ...] = ()) -> tuple[int, ...]:
    """Return what the model gets at each position of a prompt: the token id, or a digest of an embedding row or image.

    Without a mask, all positions of a prompt with embeddings are rows.
    """
    embeds = getattr(new, "prompt_embeds", None)
    if embeds is None:
        return with_images(new.prompt_token_ids, items) if items else tuple(new.prompt_token_ids)
    digests = row_digests(embeds.float().numpy())
    mask = new.prompt_is_token_ids
    if mask is None:
        return tuple(digests)
    return tuple(t if is_token else d for t, d, is_token in zip(new.prompt_token_ids, digests, mask, strict=True))


class WriteHistory:
    """The most recent writes, to find the writer of a digest."""

    def __init__(self) -> None:
        self.records: deque[WriteRecord] = deque()
        self.count = 0

    def add(self, record: WriteRecord) -> None:
        """Add a write, and remove the oldest ones beyond REMEMBERED digests."""
        self.records.append(record)
        self.count += len(record.digests)
        while self.count > REMEMBERED:
            self.count -= len(self.records.popleft().digests)

    def writer(self, digest: int) -> Writer | None:
        """Return the last writer of a digest; None if it is not known any more."""
        for record in reversed(self.records):
            at = np.flatnonzero(record.digests == np.uint64(digest))
            if len(at):
                return Writer(
                    request=record.request,
                    position=record.first + int(at[0]),
                    adapter=record.adapter,
                    content=record.content,
                    version=record.version,
                )
        return None
