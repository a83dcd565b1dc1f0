"""Engines of which one computes prompts and another one decodes, and which part of what answers can fail."""

from __future__ import annotations

import enum
from typing import Any, Protocol, runtime_checkable

import msgspec

from coldproof.adapters.protocol.capabilities import Capability, Support


class Side(enum.StrEnum):
    """One of two engines that answer together, or a server with the second tier of one engine or of both."""

    PREFILL = "prefill"
    DECODE = "decode"
    TIER = "tier"

    @property
    def other(self) -> Side:
        """Return the engine beside this engine."""
        return Side.DECODE if self is Side.PREFILL else Side.PREFILL

    @property
    def failures(self) -> Capability:
        """Return the capability of an engine in which this can be killed and started again."""
        return Capability.TIER_FAILURES if self is Side.TIER else Capability.SIDE_FAILURES


ENGINES = (Side.PREFILL, Side.DECODE)


@runtime_checkable
class RestartsSides(Protocol):
    """Engines of which a side can be killed and started again (`Side.failures`). What it has in memory is lost."""

    def restart_side(self, side: Side) -> None:
        """Kill one side, as a machine that fails, and return as soon as it answers again.

        Requests that it worked on may get an error. Raises EngineDied, and RequestRefused if it does not start again.
        """


@runtime_checkable
class HasSides(Protocol):
    """A pair of engines of which each can be changed on its own (ONE_SIDE_FIRST)."""

    def side(self, side: Side) -> Any:
        """Return one of both as an engine (`Engine`), to load adapters, reset the cache or update the weights there.

        Raises nothing: what the side refuses is raised when it is asked.
        """


def declare_apart(engine: Any) -> None:
    """Make an attached server known as a router before two engines.

    No probe can tell, because one engine that loses the blocks of its answers looks the same.
    """
    engine.shape = msgspec.structs.replace(engine.shape, publishes_answers=False, second_tier=False)
    said = Support(True, "the user says so: --prefill-apart")
    none = Support(False, "two engines of which one fetches from the other have no second tier")
    known = {Capability.PREFILL_APART: said, Capability.RESET_SECOND_TIER: none}
    engine.capabilities = {**engine.capabilities, **known}
