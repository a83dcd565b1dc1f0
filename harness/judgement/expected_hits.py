"""Computes the minimum and maximum expected hit of each request from a history's KV events alone.

Blocks are identified by the hashes in the events. Pure.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import msgspec

from coldproof.harness.history.embedding_rows import sends_rows
from coldproof.harness.history.images import has_images
from coldproof.harness.history.kv_event_replay import POOL, EventCache, replay, request_keys
from coldproof.harness.history.kv_events import HOLD_ALL, Block, RunEvents
from coldproof.harness.history.records import History, Outcome, common_prefix, may_keep_last, written_sequences
from coldproof.harness.judgement.reference_cache import Bounds

Ready = Callable[[Block, int], bool]  # whether a block can be hit, which ends at this token


class View(msgspec.Struct, frozen=True):
    """A history's events and the cache state that a subscriber derives from all of them."""

    history: History
    events: RunEvents
    cache: EventCache

    @property
    def groups(self) -> list[int | None]:
        """Return the block groups that keep all blocks, so that every hit needs their blocks from the first token."""
        return sorted({b.group for b in self.cache.blocks.values() if b.kind in HOLD_ALL}, key=str)

    def bounds(self) -> dict[int, Bounds]:
        """Return the expected hits by request number, for the requests with a reported count of one lookup.

        There are none for prompts of more than tokens, whose keys are not known, and where no event tells in time of
        blocks that can be hit: of a second tier, of one behind it, from which they come while a request waits, or of
        the parts of a block that is larger than others. Of a part, a second tier's event names the last unit alone.
        """
        shape = self.history.shape
        behind = any(record.after.slow_hit_tokens is not None for record in self.history.steps)
        untold = shape.second_tier and (shape.hits_inside or not self.cache.media - set(POOL))
        if behind or shape.unequal_blocks or untold:
            return {}
        counted = [o for o in self.history.outcomes if o.error is None and o.cached_tokens is not None]
        counted = [o for o in counted if o.options.answers == 1]  # several answers hit one another
        counted = [o for o in counted if not has_unknown_keys(o)]
        return {o.request: Bounds(at_least=self.at_least(o), at_most=self.at_most(o)) for o in counted}

    def at_most(self, outcome: Outcome) -> int:
        """Return the tokens that could be hit when the request was sent, or that concurrent ones stored later."""
        slack = self.events.slack
        first, sent = self.cache.count_at(outcome.sent - slack), self.cache.count_at(outcome.sent + slack)
        last = self.cache.count_at(outcome.finished + slack)
        shared = max((self.shared(other, outcome) for other in self.history.outcomes), default=0)

        def ready(block: Block, end: int) -> bool:
            there = self.cache.could_be_hit(block.place, first, sent)
            return there or (end <= shared and self.cache.could_be_hit(block.place, first, last))

        return min((self.reach(group, outcome, ready) for group in self.groups), default=0)

    def at_least(self, outcome: Outcome) -> int | None:
        """Return the tokens, in whole blocks, that could be hit from before the request was sent until it ended.

        Return None if a miss proves nothing: for prompt logprobs, which may bypass the cache, for requests that overlap
        an adapter change, without prefix caching, and for several kinds of layers. Blocks that differ only by their
        hash do not count, because it is unknown whose they are.
        """
        shape, slack = self.history.shape, self.events.slack
        if not shape.uniform or not shape.prefix_caching or outcome.overlapped or outcome.options.needs_whole_prompt:
            return None
        first, last = self.cache.count_at(outcome.sent - slack), self.cache.count_at(outcome.finished + slack)

        def ready(block: Block, _end: int) -> bool:
            return self.cache.could_always_be_hit(block.place, first, last)

        found = min((self.reach(group, outcome, ready, alone=True) for group in self.groups), default=0)
        return max(0, found - (shape.block_size or 0)) if shape.drops_block else found

    def reach(self, group: int | None, outcome: Outcome, ready: Ready, *, alone: bool = False) -> int:
        """Return how many tokens of a prompt have ready blocks, with `alone` up to an ambiguous block.

        The last token is computed in any case. Only a second tier may report it as loaded, which no tier has to.
        """
        most = len(outcome.prompt) - (0 if self.history.shape.second_tier and not alone else 1)
        reached = {0}
        for begin, blocks in self.cache.spans_of(group, outcome.prompt, request_keys(outcome)):
            end, ambiguous = begin + len(blocks[0].tokens), alone and len(blocks) > 1
            if begin in reached and not ambiguous and end <= most and any(ready(block, end) for block in blocks):
                reached.add(end)
        return max(reached)

    def shared(self, other: Outcome, outcome: Outcome) -> int:
        """Return how many of a request's leading tokens a concurrent request with the same keys may have computed."""
        slack = self.events.slack
        over = other.finished <= outcome.sent - slack and not open_ended(other)
        apart = other.request == outcome.request or over or other.sent >= outcome.finished + slack
        if apart or request_keys(other) != request_keys(outcome):
            return 0
        sequences = written_sequences(other, drafts=may_keep_last(self.history))
        return max(common_prefix(sequence, outcome.prompt) for sequence in sequences)


@functools.lru_cache(maxsize=4)
def replayed(events: RunEvents) -> EventCache:
    """Replay the events of a run. The result is cached and must not be changed."""
    return replay(events)


def view(history: History) -> View | None:
    """Return a history's events with its replayed cache; None if the history has no events."""
    return None if history.events is None else View(history, history.events, replayed(history.events))


def open_ended(outcome: Outcome) -> bool:
    """Return whether more tokens may be computed than the client saw: it disconnected, or found a stop string."""
    return not outcome.answered or bool(outcome.options.stop)


def has_unknown_keys(outcome: Outcome) -> bool:
    """Return whether the engine adds to the keys of a prompt's blocks what stands for its images or rows."""
    return has_images(outcome) or sends_rows(outcome)


def may_have_stored(outcome: Outcome, blocks: tuple[Block, ...], *, drafts: bool) -> bool:
    """Return whether a chain of blocks can be this request's, by its tokens, adapter name and extra keys.

    Of prompts with images or rows, the events have other tokens and keys than we know. `drafts`: see
    `written_sequences`.
    """
    if has_unknown_keys(outcome):
        return True
    keys = request_keys(outcome)
    if any((b.lora_name, b.extra_keys) != (keys.lora_name, keys.at(i)) for i, b in enumerate(blocks)):
        return False
    tokens = tuple(token for block in blocks for token in block.tokens)
    shared = (
        (common_prefix(sequence, tokens), len(sequence)) for sequence in written_sequences(outcome, drafts=drafts)
    )
    return any(same == len(tokens) or (open_ended(outcome) and same == whole) for same, whole in shared)
