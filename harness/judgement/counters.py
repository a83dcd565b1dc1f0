"""How a counter of evidence is declared: as a member of a class beside the one function that computes all of them."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Self, TypeVar

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.harness.judgement.registry import Asks, Registered, Registry, asks_nothing

Facts = TypeVar("Facts", bound=Callable[..., dict[str, float]])


class Trait(enum.Enum):
    """What others need to know about a counter."""

    SMALL_POOL = "It can rise only in a KV-cache pool that is too small for the workload."
    HIT_COUNTS = "It needs an engine that reports, in some way, how much of a prompt came from its cache."
    EXCLUSIVE = "It is 0 if other clients use the engine: the engine's counters and gauges are those of all clients."
    OF_RESETS = "Without its resets, a smaller workload may fail because of another fault."
    OF_SAVED_STATE = "Without its saved states, a smaller workload may fail because of another fault."


class Evidence(enum.StrEnum):
    """Counters of one history; they are summed over the examples of a requirement.

    A subclass has the counters of one function. A member's value is the text that reports show, then its traits, and
    the feature that has acted if the counter is not zero.
    """

    traits: frozenset[Trait]
    feature: Capability | None

    def __new__(cls, words: str, *traits: Trait | Capability) -> Self:
        """Return a counter with this text."""
        made = str.__new__(cls, words)
        made._value_ = words
        made.traits = frozenset(one for one in traits if isinstance(one, Trait))
        made.feature = next((one for one in traits if isinstance(one, Capability)), None)
        return made


class Counting(Registered, frozen=True, kw_only=True):
    """A function that returns one value for each of its counters, for every example."""

    counters: type[Evidence]


COUNTINGS: Registry[Counting] = Registry("evidence", package="coldproof.harness.judgement.evidence")


def computes(counters: type[Evidence], *, order: int, asks: Asks = asks_nothing) -> Callable[[Facts], Facts]:
    """Register a function as the one that computes these counters. See `Registered` for `order` and `asks`."""

    def register(function: Facts) -> Facts:
        COUNTINGS.add(Counting(function=function, order=order, asks=asks, counters=counters))
        return function

    return register
