"""What a history's KV events say about its requests: how much each may have hit, and must have.

In terms of the stream alone: blocks go by the names that events give them. Pure.
"""

from __future__ import annotations

import functools
from typing import Protocol

import msgspec

from harness.event_blocks import HOLD_ALL, Block, RunEvents
from harness.event_cache import EventCache
from harness.event_ledger import keys_of
from harness.history import History, Outcome
from harness.reference_cache import Bounds
from harness.tokens_computed import common_prefix


class View(msgspec.Struct, frozen=True):
    """A history's events and what a consumer of them knows when all have come."""

    history: History
    events: RunEvents
    cache: EventCache

    @property
    def groups(self) -> list[int | None]:
        """The groups whose blocks every hit needs from its first token on."""
        return sorted({b.group for b in self.cache.blocks.values() if b.kind in HOLD_ALL}, key=str)

    def bounds(self) -> dict[int, Bounds]:
        """What the stream explains, by request: for those that have a count to explain."""
        told = [o for o in self.history.outcomes if o.error is None and o.cached_tokens is not None]
        return {o.request: Bounds(at_least=self.at_least(o), at_most=self.at_most(o)) for o in told if counted(o)}

    def at_most(self, outcome: Outcome) -> int:
        """What could be hit when the request was sent, and what others that ran beside it stored meanwhile.

        Its own blocks are stored too; no request hits those.
        """
        slack = self.events.slack
        first, sent = self.cache.count_at(outcome.sent - slack), self.cache.count_at(outcome.sent + slack)
        last = self.cache.count_at(outcome.finished + slack)
        shared = max((self.shared(other, outcome) for other in self.history.outcomes), default=0)

        def ready(block: Block, end: int) -> bool:
            there = self.cache.sometime(block.place, first, sent)
            return there or (end <= shared and self.cache.sometime(block.place, first, last))

        return min((self.reach(group, outcome, ready) for group in self.groups), default=0)

    def at_least(self, outcome: Outcome) -> int | None:
        """What could be hit all the while, from before the request was sent until it was over, by whole blocks.

        None where a miss is no fault of the stream: prompt logprobs pass the cache by, and where events tell two blocks
        apart by nothing but the hash nobody knows whose is there.
        """
        shape, slack = self.history.shape, self.events.slack
        if not shape.uniform or not shape.prefix_caching or outcome.overlapped or outcome.surface.prompt_logprobs:
            return None
        first, last = self.cache.count_at(outcome.sent - slack), self.cache.count_at(outcome.finished + slack)
        reach = [
            self.reach(group, outcome, lambda block, _: self.cache.throughout(block.place, first, last), alone=True)
            for group in self.groups
        ]
        return min(reach, default=0)

    def reach(self, group: int | None, outcome: Outcome, ready: Ready, *, alone: bool = False) -> int:
        """The tokens of a prompt as far as its blocks are ready, its last one excepted. `alone`: and not ambiguous."""
        end = 0
        for blocks in self.cache.chain(group, outcome.prompt, keys_of(outcome)):
            further = end + len(blocks[0].tokens)
            if further > len(outcome.prompt) - 1 or not any(ready(block, further) for block in blocks):
                break
            if alone and len(blocks) > 1:
                break
            end = further
        return end

    def shared(self, other: Outcome, outcome: Outcome) -> int:
        """How many of a request's tokens another one that ran beside it may have computed under the same names."""
        slack = self.events.slack
        over = other.finished <= outcome.sent - slack and not open_ended(other)
        if other.request == outcome.request or over or other.sent >= outcome.finished + slack:
            return 0
        if keys_of(other) != keys_of(outcome):
            return 0
        return max(common_prefix(sequence, outcome.prompt) for sequence in sequences(other))


class Ready(Protocol):
    """Whether a block that ends behind so many tokens counts."""

    def __call__(self, block: Block, end: int, /) -> bool:
        """Tell."""


@functools.lru_cache(maxsize=4)
def replayed(events: RunEvents) -> EventCache:
    """The events of a run, replayed. Whoever asks again gets the same one, and must not change it."""
    cache = EventCache(events.before, expected=events.expected, in_pool=events.in_pool)
    for batch in events.batches:
        cache.take(batch)
    return cache


def view(history: History) -> View | None:
    """A history's events in view of its requests; None where there are none."""
    return None if history.events is None else View(history, history.events, replayed(history.events))


def counted(outcome: Outcome) -> bool:
    """Whether a request's count is about one lookup: several answers to a prompt hit one another."""
    return outcome.surface.answers == 1


def sequences(outcome: Outcome) -> list[tuple[int, ...]]:
    """The tokens whose KV a request wrote, for each of its answers: all but the last sampled one."""
    answers = [outcome.tokens, *outcome.others]
    return [outcome.prompt + tuple(token.id for token in tokens[:-1]) for tokens in answers]


def open_ended(outcome: Outcome) -> bool:
    """Whether the engine may have gone on behind the tokens that its client saw: it hung up, or a stop string was found
    where the engine does not look for it."""
    return not outcome.answered or bool(outcome.surface.stop)


def may_have_stored(outcome: Outcome, blocks: tuple[Block, ...]) -> bool:
    """Whether blocks from a prompt's start on can be this request's, by tokens, adapter's name and extra keys."""
    keys = keys_of(outcome)
    if any((b.lora_name, b.extra_keys) != (keys.lora_name, keys.at(i)) for i, b in enumerate(blocks)):
        return False
    tokens = tuple(token for block in blocks for token in block.tokens)
    for sequence in sequences(outcome):
        same = common_prefix(sequence, tokens)
        if same == len(tokens) or (open_ended(outcome) and same == len(sequence)):
            return True
    return False
