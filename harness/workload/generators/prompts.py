"""Prompts that share prefixes, with lengths around the engine's block boundaries.

The first choice of every draw is the simplest, so that shrinking ends at what a person would write: one stem of two
blocks, sent again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from typing import Protocol, TypeVar

import msgspec
from hypothesis import strategies as st

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.restarts import OF_KV, EngineChange
from coldproof.adapters.protocol.weights import WeightPolicy
from coldproof.harness.workload.steps import Prompt, Request, Segment, Workload
from coldproof.harness.workload.tokens import NONCE_TOKENS, new_prompt_length

DEFAULT_BLOCK = 32  # where the engine does not report it; lengths are then not aligned
STEMS = ("stem", "other")
MOST_TOKENS = 700  # a longer conversation is not continued: enough for twenty blocks, cheap to compute cold
SMALLEST_UNIT = 16
Number = TypeVar("Number", int, float)


def whole_unit(block: int) -> int:
    """Return the size of a block, or of as many small blocks as make sixteen tokens."""
    return block * max(1, -(-SMALLEST_UNIT // block))


class Guidance(Protocol):
    """Workloads that have reached new states of the engine."""

    def choose(self, random: Random) -> Workload | None:
        """Return one of them; None if there is none."""


class Leads(Protocol):
    """What the examples of a trial are drawn for, as long as it lacks evidence."""

    def choose(self, among: tuple[str, ...], number: int) -> str:
        """Return one of these names of evidence, or "" for none. It is the same for the same number."""


class WorkloadLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What workloads may contain: sizes from the engine, and the mixtures for which GROUND-1 holds.

    `scale`: how large they may be, as a part of what a fast engine gets. A slow model answers small ones in time.
    """

    block: int
    slots: int
    contents: tuple[str, ...]
    mixtures: frozenset[str]
    longest: int = 2048  # tokens of one request, with its answer
    pool: int | None = None  # tokens that the whole pool holds
    groups: int = 1  # of layers, each of which takes blocks of the pool for a request
    requests: int | None = None  # that run at the same time; the next one waits
    most_tokens: int = 8000  # that one workload may compute, to limit its cost
    can: frozenset[Capability] = frozenset(Capability)
    scale: float = 1.0
    ranks: int = 1  # with a cache each, of which a request chooses one
    image_tokens: int | None = None  # positions of an image; None: prompts have none
    versions: tuple[str, ...] = ()  # of the weights, without that of the start
    policy: WeightPolicy = WeightPolicy.ON_RESET  # what the engine promises after an update of the weights
    changes: tuple[EngineChange, ...] = OF_KV  # possible differences of an engine before a restart
    guidance: Guidance | None = None  # also draw variations of these
    leads: Leads | None = None  # what to draw first; None: by chance
    step: int | None = None  # tokens that one step computes at most
    rare: bool = False  # also draw workloads of rare states: an engine on which examples are cheap and repeat exactly
    varied: bool = False  # also draw variations without guidance

    @property
    def unit(self) -> int:
        """Return a block, or as many small ones as make sixteen tokens: a prompt needs room for a nonce and an edge.

        If blocks are so large that no workload of them fits into the model, the unit is smaller than a block. Then
        nothing hits, and the requirement ends as not exercised.
        """
        return min(whole_unit(self.block), self.longest // 7)

    @property
    def small_pool(self) -> int | None:
        """Return the size of the pool if a workload can exceed it, otherwise None."""
        return self.pool if self.pool is not None and 2 * self.pool <= self.most_tokens else None

    @property
    def pool_is_too_large(self) -> bool:
        """Return whether the size of the pool is known, and no workload can exceed it."""
        return self.pool is not None and self.small_pool is None

    @property
    def slow(self) -> bool:
        """Return whether workloads are smaller than for a fast engine."""
        return self.scale < 1

    def sizes(self, choices: Sequence[Number], *, least: Number = 0) -> tuple[Number, ...]:
        """Return the lengths or numbers to draw from: all of them for a fast engine, else the smaller ones.

        All that are at most `least` stay; if none does, the smallest.
        """
        most = max(least, max(choices) * self.scale)
        return tuple(one for one in choices if one <= most) or (min(choices),)

    def most(self, count: int, *, least: int = 0) -> int:
        """Return how many of at most `count` steps or requests to draw: all for a fast engine, else fewer."""
        return max(least, int(count * self.scale))

    def may_mix(self, mixture: str) -> bool:
        """Return whether requests of this mixture may run concurrently without violating GROUND-1."""
        return mixture in self.mixtures

    def may_run_beside(self, first: str | None, second: str | None) -> bool:
        """Return whether GROUND-1 holds for two models in one batch: names of adapters, None for the base model."""
        if (first is None) != (second is None):
            return self.may_mix(BASE_WITH_ADAPTER)
        return first == second or self.may_mix(ADAPTERS_TOGETHER)


def computed_tokens(requests: Iterable[Request]) -> int:
    """Return how many tokens an engine with room computes for requests: each prompt once, and all answers."""
    known = list(requests)
    prompts = {msgspec.json.encode(request.prompt): new_prompt_length(request.prompt) for request in known}
    return sum(prompts.values()) + sum(request.max_tokens for request in known)


BASE_WITH_ADAPTER = "base with adapter"
ADAPTERS_TOGETHER = "adapters together"


@st.composite
def stems(draw: st.DrawFn, limits: WorkloadLimits, names: tuple[str, ...] = STEMS) -> Segment:
    """Draw a leading segment that, with the nonce, ends at, just before or just after a block boundary."""
    unit = limits.unit
    fitting = [n for n in (2, 3, 5, 8) if n * unit <= limits.longest // 3] or [2]
    blocks = draw(st.sampled_from(limits.sizes(fitting)))
    edge = draw(st.sampled_from((1, 0, -1, unit // 2)))
    return Segment(draw(st.sampled_from(names)), blocks * unit + edge - NONCE_TOKENS)


@st.composite
def related_prompts(draw: st.DrawFn, limits: WorkloadLimits, stem: Segment, earlier: int | None) -> Prompt:
    """Draw a prompt that shares all or part of `stem` with others, or continues request `earlier` (None: none)."""
    kinds = ["same", "tail", "part", "neighbour"] + (["turn"] if earlier is not None else [])
    match draw(st.sampled_from(kinds)):
        case "tail":
            length = draw(st.sampled_from((1, limits.unit - 1, limits.unit + 1)))
            return Prompt((stem, Segment(draw(st.sampled_from(("tail", "end"))), length)))
        case "part":
            cut = draw(st.sampled_from((stem.length - limits.unit, stem.length - 1)))
            return Prompt((Segment(stem.name, cut), Segment("branch", limits.unit // 2)))
        case "neighbour":
            return Prompt((draw(nearly_equal(limits, stem)), Segment("tail", limits.unit)))
        case "turn":
            return Prompt((Segment("turn", draw(st.sampled_from((5, limits.unit)))),), continues=earlier)
    return Prompt((stem,))


@st.composite
def nearly_equal(draw: st.DrawFn, limits: WorkloadLimits, segment: Segment) -> Segment:
    """Draw a copy of a leading segment with one token changed or two swapped: the first, middle or last of a block.

    Only a block that differs in such a place shows a key that leaves out an end of a block, or the order of its tokens.
    The caller adds more tokens after it, because a prompt's last token and a partly filled block are never looked up.
    """
    whole = max(1, (NONCE_TOKENS + segment.length) // limits.unit)  # blocks that end in it
    start = draw(st.sampled_from((whole - 1, whole - 1, whole - 1, *range(whole)))) * limits.unit
    block, half = limits.block, limits.block // 2
    within = draw(st.sampled_from((limits.unit - 1, limits.unit - block, limits.unit - block + half, None)))
    if within is None:
        first = min(max(0, start + half - NONCE_TOKENS), segment.length - 2)
        return msgspec.structs.replace(segment, swapped=first)
    place = min(max(0, start + within - NONCE_TOKENS), segment.length - 1)
    return msgspec.structs.replace(segment, changed=place)


@st.composite
def answer_lengths(draw: st.DrawFn, limits: WorkloadLimits) -> int:
    """Draw a number of tokens to generate: a few, one, two, or enough for decode to fill a block and start the next."""
    return draw(st.sampled_from(limits.sizes((8, 8, 8, 1, 4, limits.unit + 2, 2), least=4)))


class DrawnRequests:
    """The requests drawn so far, so that a next turn can continue one and stay short."""

    def __init__(self, limit: int = MOST_TOKENS) -> None:
        self.limit = limit
        self.requests: list[Request] = []
        self.lengths: list[int] = []

    def add(self, request: Request) -> Request:
        """Record a request that the workload now contains."""
        before = 0 if request.prompt.continues is None else self.lengths[request.prompt.continues]
        self.lengths.append(before + new_prompt_length(request.prompt) + request.max_tokens)
        self.requests.append(request)
        return request

    def latest(self, adapter: str | None) -> int | None:
        """Return the latest request to this model that another turn may follow."""
        for number in range(len(self.requests) - 1, -1, -1):
            if self.requests[number].adapter == adapter and self.lengths[number] < self.limit:
                return number
        return None
