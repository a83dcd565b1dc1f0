"""Restarts of an engine, of one of several engines, or of the server of a tier."""

from __future__ import annotations

import msgspec

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.restarts import EngineChange
from coldproof.adapters.protocol.sides import Side
from coldproof.harness.workload.kinds.kind import Mark, State, StepKind


class Restart(StepKind, frozen=True, omit_defaults=True, tag="restart"):
    """Stop the engine and start it again over the same storage. Up to here, `before` was different about it."""

    before: EngineChange = EngineChange.NOTHING

    def describe(self) -> str:
        """Return the step in one line."""
        other = "" if self.before is EngineChange.NOTHING else f"; until now it had {self.before}"
        return f"restart the engine over the same storage{other}"

    def after(self, now: State) -> State:
        """Return the state of the next engine, which has no adapters."""
        return msgspec.structs.replace(now, loaded=frozenset())


class RestartSide(StepKind, frozen=True, tag="restart_side"):
    """Kill one of two engines that answer together, or the server of a tier, and start it again. Its KV is lost."""

    side: Side

    def describe(self) -> str:
        """Return the step in one line."""
        return f"kill {'the tier' if self.side is Side.TIER else f'the {self.side} side'} and start it again"

    def mark(self) -> Mark:
        """Return the row."""
        return Mark(kind=f"restart of {self.side}")

    def needs(self) -> tuple[Capability, ...]:
        """Return the capability of an engine with such a side. One without a cache has no tier, for example."""
        return (self.side.failures,)
