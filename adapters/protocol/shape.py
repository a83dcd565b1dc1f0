"""The sizes of an engine: blocks, pool and limits. A size that the engine does not report is None, never a guess."""

from __future__ import annotations

import msgspec


class GroupShape(msgspec.Struct, frozen=True):
    """A KV-cache group: layers that share a block table. `block`: tokens in a block.

    `most_blocks`: the maximum number of blocks that one request holds at a time, for layers with a sliding window or a
    state. None: one request holds blocks for all its tokens. `tail`: the number of blocks just below a position that
    such layers need for a hit that ends there. None: all blocks, or unknown.
    """

    block: int
    most_blocks: int | None = None
    tail: int | None = None

    def blocks(self, tokens: int) -> int:
        """Return the number of blocks of this group that a request with this number of tokens needs."""
        whole = -(-tokens // self.block)
        return whole if self.most_blocks is None else min(whole, self.most_blocks)


class ImageShape(msgspec.Struct, frozen=True):
    """The images that an engine takes: squares of `side` pixels, which take `tokens` positions of a prompt."""

    side: int
    tokens: int


class EngineShape(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes from which the generators compute workload sizes. None: unknown.

    `block_size`: the granularity of hits, in tokens. If groups of layers have different block sizes, it is whole
    blocks of all of them.
    """

    block_size: int | None
    pool_blocks: int | None
    max_model_tokens: int
    adapter_slots: int | None
    prefix_caching: bool | None
    limit_is_told: bool = True  # the engine says how many tokens a request may have; otherwise it is a guess
    # Every layer keeps every block. Otherwise hits are required only at certain positions: see `kept_every`.
    uniform: bool = True
    # If not `uniform`: layers with windows or states keep blocks for hits that end at multiples of this number of
    # tokens; 0: at none. They also keep them for each prompt's last whole block and for prefixes that prompts share:
    # see harness/judgement/kept_positions.py. None: unknown; then a hit is required only for a prompt sent again.
    kept_every: int | None = None
    # Requests are admitted as soon as they fit, in the order of their priorities and arrivals.
    in_order: bool = True
    most_requests: int | None = None  # the maximum number of running requests
    step_tokens: int | None = None  # the maximum number of tokens that one step computes, over all requests
    # The engine keeps this number of whole sequences instead of blocks. Only hits on the previous request are required.
    sequences: int | None = None
    second_tier: bool = False  # blocks that the pool evicts or loses in a reset may be loaded from a second tier
    # The number of blocks for which a second tier has room, if it stores each block of a prompt and drops what was used
    # longest ago. None: it is unknown what it keeps.
    tier_blocks: int | None = None
    tier_keeps_answers: bool = False  # and each block that an answer fills
    failed_load_ends_request: bool = False  # a failed load ends the request with an error; otherwise it is answered
    groups: tuple[GroupShape, ...] = ()  # empty: unknown
    # With fewer free blocks than this, the engine evicts all unused blocks at once. None: it evicts single blocks.
    drops_all_below: int | None = None
    # Of the blocks that no request uses, the one that was freed longest ago is evicted first. Not so where a second
    # tier stores blocks shortly before their eviction, and gives them back behind newer ones.
    evicts_oldest: bool = True
    # The engine evicts at once all that a request has added behind the prefix that it shared: a leaf of a radix tree.
    evicts_leaves: bool = False
    moves_pieces_of: int | None = None  # the minimum length of non-prefix KV reuse, in tokens; None: no such reuse
    shifts_context: bool = False  # an answer may outgrow the context; the oldest tokens are evicted, the others shift
    resumes_first: bool = False  # a preempted request is resumed before requests that were sent after it are admitted
    preempts_latest: bool = False  # of equally urgent requests, the one that arrived last is preempted first
    # The query counter counts each prompt once, at admission, and the hit counter only the hits of that lookup.
    counts_first_lookups: bool = False
    image: ImageShape | None = None  # None: prompts have no images
    # A hit may end a block before the last one that is there: heads that draft have computed it from a token more.
    drops_block: bool = False
    publishes_answers: bool = True  # what a request decodes can be hit. Not so where another engine computes prompts
    ranks: int = 1  # that each have a cache of this size, and serve whole requests (data parallel)
    # A token is computed before it is known that the answer ends with it, so that its KV can be hit, too.
    computes_last: bool = False
    # The scores behind the last computed token are kept with its KV, so that nothing of a prompt need be computed.
    keeps_scores: bool = False
    rounds: bool = True  # scores are floating-point sums. False: they are exact, and no difference is a rounding error
    row_width: int | None = None  # the values of an embedding row; None: prompts consist of tokens

    @property
    def unequal_blocks(self) -> bool:
        """Return whether groups have blocks of several sizes, so that a part of a larger one may be hit."""
        return len({group.block for group in self.groups}) > 1

    @property
    def hits_inside(self) -> bool:
        """Return whether a hit may end inside a block."""
        return (self.block_size or 0) < max((group.block for group in self.groups), default=0)

    @property
    def fetches_prompts(self) -> bool:
        """Return whether one engine computes prompts and another one, which fetches them, decodes."""
        return not self.publishes_answers

    @property
    def shares_a_tier(self) -> bool:
        """Return whether two engines, of which one computes prompts, have one second tier.

        The decoder computes what it does not find there, so that nothing follows from how much it loads. The counter of
        loaded tokens is of both.
        """
        return self.fetches_prompts and self.second_tier
