"""Prompts that share prefixes on purpose, with lengths around the engine's block boundaries.

The first choice of every draw is the simplest, so that shrinking ends at what a person would have written: one stem of
two blocks, asked again.
"""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st

from adapters.base import Capability
from harness.workload import NONCE_TOKENS, Prompt, Request, Segment, new_prompt_length

DEFAULT_BLOCK = 32  # where the engine does not say; lengths are then merely not aligned
STEMS = ("stem", "other")
MOST_TOKENS = 700  # a conversation as long as that is not continued: enough for twenty blocks, cheap to ask cold
SMALLEST_UNIT = 16


def whole_unit(block: int) -> int:
    """A block, or as many small ones as make sixteen tokens."""
    return block * max(1, -(-SMALLEST_UNIT // block))


class Grounds(msgspec.Struct, frozen=True, kw_only=True):
    """What workloads may be built of here: sizes from the engine, mixtures that the ground rule holds for."""

    block: int
    slots: int
    contents: tuple[str, ...]
    mixtures: frozenset[str]
    longest: int = 2048  # tokens that one request may come to
    pool: int | None = None  # tokens that the cache holds in all
    most_tokens: int = 8000  # that one workload may compute, to stay affordable
    can: frozenset[Capability] = frozenset(Capability)

    @property
    def unit(self) -> int:
        """A block, or as many small ones as make sixteen tokens: a prompt has to have room for a nonce and an edge.

        Blocks so large that no workload of them fits into the model are cut short: shorter than a block, nothing hits,
        and the requirement ends as not exercised.
        """
        return min(whole_unit(self.block), self.longest // 7)

    @property
    def small_pool(self) -> int | None:
        """The pool, where a workload can come to more than it holds."""
        return self.pool if self.pool is not None and 2 * self.pool <= self.most_tokens else None

    def may_mix(self, mixture: str) -> bool:
        """Whether requests of this mixture may run side by side without breaking GROUND-1."""
        return mixture in self.mixtures


BASE_WITH_ADAPTER = "base with adapter"
ADAPTERS_TOGETHER = "adapters together"


@st.composite
def stems(draw: st.DrawFn, grounds: Grounds, names: tuple[str, ...] = STEMS) -> Segment:
    """A leading segment whose end, nonce included, falls on, just before or just behind a block boundary."""
    unit = grounds.unit
    blocks = draw(st.sampled_from([n for n in (2, 3, 5, 8) if n * unit <= grounds.longest // 3] or [2]))
    edge = draw(st.sampled_from((1, 0, -1, unit // 2)))
    return Segment(draw(st.sampled_from(names)), blocks * unit + edge - NONCE_TOKENS)


@st.composite
def related_prompts(draw: st.DrawFn, grounds: Grounds, stem: Segment, talk: int | None) -> Prompt:
    """A prompt that shares all or part of `stem` with others, or goes on from request `talk` (None: from nothing)."""
    kinds = ["same", "tail", "part", "neighbour"] + (["turn"] if talk is not None else [])
    match draw(st.sampled_from(kinds)):
        case "tail":
            length = draw(st.sampled_from((1, grounds.unit - 1, grounds.unit + 1)))
            return Prompt((stem, Segment(draw(st.sampled_from(("tail", "end"))), length)))
        case "part":
            cut = draw(st.sampled_from((stem.length - grounds.unit, stem.length - 1)))
            return Prompt((Segment(stem.name, cut), Segment("branch", grounds.unit // 2)))
        case "neighbour":
            return Prompt((draw(near(grounds, stem)), Segment("tail", grounds.unit)))
        case "turn":
            return Prompt((Segment("turn", draw(st.sampled_from((5, grounds.unit)))),), continues=talk)
    return Prompt((stem,))


@st.composite
def near(draw: st.DrawFn, grounds: Grounds, segment: Segment) -> Segment:
    """A prompt's leading segment with one token changed or two swapped: in one of its blocks the first, the last or the
    middle one.

    A key that leaves out an end of a block, or takes its tokens without their order, is told only by a block that
    differs there alone. Whoever uses it puts something behind it: a prompt's last token, and a block that is not full,
    are never looked up.
    """
    whole = max(1, (NONCE_TOKENS + segment.length) // grounds.unit)  # those that end in it
    start = draw(st.sampled_from((whole - 1, whole - 1, whole - 1, *range(whole)))) * grounds.unit
    block, half = grounds.block, grounds.block // 2
    within = draw(st.sampled_from((grounds.unit - 1, grounds.unit - block, grounds.unit - block + half, None)))
    if within is None:
        first = min(max(0, start + half - NONCE_TOKENS), segment.length - 2)
        return msgspec.structs.replace(segment, swapped=first)
    place = min(max(0, start + within - NONCE_TOKENS), segment.length - 1)
    return msgspec.structs.replace(segment, changed=place)


@st.composite
def answers_lengths(draw: st.DrawFn, grounds: Grounds) -> int:
    """Tokens to generate: a few, one, or enough for decode to fill a block and cross into the next."""
    return draw(st.sampled_from((8, 8, 8, 1, 4, grounds.unit + 2)))


class Talk:
    """Keeps count of the requests drawn so far, so that a next turn can name an earlier one and stay affordable."""

    def __init__(self, limit: int = MOST_TOKENS) -> None:
        self.limit = limit
        self.requests: list[Request] = []
        self.lengths: list[int] = []

    def add(self, request: Request) -> Request:
        """Note a request that the workload now holds."""
        before = 0 if request.prompt.continues is None else self.lengths[request.prompt.continues]
        self.lengths.append(before + new_prompt_length(request.prompt) + request.max_tokens)
        self.requests.append(request)
        return request

    def latest(self, adapter: str | None) -> int | None:
        """The newest request to this model that a further turn still may follow."""
        for number in range(len(self.requests) - 1, -1, -1):
            if self.requests[number].adapter == adapter and self.lengths[number] < self.limit:
                return number
        return None
