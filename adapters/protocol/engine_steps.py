"""What an engine's scheduler did in a step, for engines that are stepped in this process. Only facts that are cheap.

Steps in which requests only decode are not recorded: they are most of all steps, and their facts follow from the times
of the tokens.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import msgspec


class Admission(msgspec.Struct, frozen=True, array_like=True):
    """A request that begins to run. `hit`: its tokens whose KV is there already, from any tier.

    `resumed`: it ran before and was preempted.
    """

    request: str
    hit: int
    resumed: bool = False


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """The tokens from `start` to `end` that a request computes in prefill. It decodes once `target` is reached."""

    request: str
    start: int
    end: int
    target: int


class EngineStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step of a scheduler.

    `at`: the engine's clock, in seconds. `decoding`: how many requests decode beside. `waiting`, `running`, `free`:
    requests in the queue, admitted requests and free blocks when the step was scheduled. `usage`: what the pool's gauge
    says then; None if the engine has none. `evicted`: cached blocks that it evicted, and
    `evicted_first`: how many of these were the first block of a prompt.
    """

    at: float
    admitted: tuple[Admission, ...] = ()
    chunks: tuple[Chunk, ...] = ()
    decoding: int = 0
    waiting: int = 0
    running: int | None = None
    free: int = 0
    usage: float | None = None
    evicted: int = 0
    evicted_first: int = 0


@runtime_checkable
class RecordsSteps(Protocol):
    """An engine that records its steps."""

    def take_steps(self) -> tuple[EngineStep, ...] | None:
        """Return and remove the steps that were recorded since the last call; None if this engine records none."""
