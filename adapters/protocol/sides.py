"""Engines of which one computes prompts and another one decodes, and how one of them can fail."""

from __future__ import annotations

import enum
from typing import Any, Protocol, runtime_checkable

import msgspec

from coldproof.adapters.protocol.capabilities import Capability, Support


class Side(enum.StrEnum):
    """One of two engines that answer together."""

    PREFILL = "prefill"
    DECODE = "decode"

    @property
    def other(self) -> Side:
        """Return the engine beside this one."""
        return Side.DECODE if self is Side.PREFILL else Side.PREFILL


@runtime_checkable
class RestartsSides(Protocol):
    """A pair of engines of which one can be killed and started again (SIDE_FAILURES). Its cache is lost."""

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
