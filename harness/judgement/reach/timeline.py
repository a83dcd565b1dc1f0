"""What the requests of a history did and when: admitted, computed, preempted, resumed, ended. Follows from the record.

Without recorded steps, a request counts as admitted when it was sent.
"""

from __future__ import annotations

import bisect
import enum
from collections import defaultdict
from functools import cached_property

import msgspec

from coldproof.adapters.protocol.engine_steps import Chunk, EngineStep
from coldproof.harness.history.records import History, Outcome, common_prefix, written_tokens

DEFAULT_BLOCK = 16
MOMENT = 1e-6  # before an end or a preemption: times are rounded to microseconds, steps are longer


class Phase(enum.Enum):
    """What a request is doing at a moment."""

    ABSENT = "not sent yet, or over"
    QUEUED = "waits and never ran"
    PREFILL = "runs, without a token"
    DECODE = "runs, with a token"
    PREEMPTED = "waits after a preemption"


class Start(msgspec.Struct, frozen=True):
    """A request begins to run, in a step. `hit`: None if it is unknown. `step`: None if steps are not recorded."""

    outcome: Outcome
    at: float
    hit: int | None
    resumed: bool
    step: EngineStep | None


class Timeline:
    """The requests of one history over time."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.block = history.shape.block_size or DEFAULT_BLOCK
        self.outcomes = {o.request: o for o in history.outcomes}
        self.steps = history.engine_steps or ()
        self._shared: dict[tuple[int, int], int] = {}

    @cached_property
    def starts(self) -> list[Start]:
        """Return every begin of a request's run, in order."""
        if self.history.engine_steps is None:
            sent = sorted(self.history.outcomes, key=lambda o: o.sent)
            return [Start(o, o.sent, o.cached_tokens, False, None) for o in sent if not o.refused]
        found: list[Start] = []
        seen: set[tuple[int, float]] = set()  # several answers of one request start as one
        for step in self.steps:
            for one in step.admitted:
                number = int(one.request)
                if number in self.outcomes and (number, step.at) not in seen:
                    seen.add((number, step.at))
                    found.append(Start(self.outcomes[number], step.at, one.hit, one.resumed, step))
        return found

    @cached_property
    def started(self) -> dict[int, list[float]]:
        """Return the times at which each request began to run."""
        times: dict[int, list[float]] = defaultdict(list)
        for start in self.starts:
            times[start.outcome.request].append(start.at)
        return times

    @cached_property
    def chunks(self) -> dict[int, list[tuple[float, Chunk]]]:
        """Return the chunks of each request, with their times."""
        chunks: dict[int, list[tuple[float, Chunk]]] = defaultdict(list)
        for step in self.steps:
            for chunk in step.chunks:
                chunks[int(chunk.request)].append((step.at, chunk))
        return chunks

    def phase(self, outcome: Outcome, at: float) -> Phase:
        """Return what a request is doing at a moment. What happens at a time has happened then."""
        if not outcome.sent <= at < outcome.finished:
            return Phase.ABSENT
        runs = bisect.bisect_right(self.started.get(outcome.request, []), at)
        if not runs:
            return Phase.QUEUED
        if runs <= sum(outcome.sent + lost <= at for lost in outcome.preempted_at):
            return Phase.PREEMPTED
        return Phase.DECODE if self.tokens_at(outcome, at) else Phase.PREFILL

    def before_end(self, outcome: Outcome) -> Phase:
        """Return what a request was doing just before it ended."""
        runs = len(self.started.get(outcome.request, []))
        if not runs:
            return Phase.QUEUED
        if runs <= len(outcome.preempted_at):
            return Phase.PREEMPTED
        return Phase.DECODE if outcome.tokens else Phase.PREFILL

    def tokens_at(self, outcome: Outcome, at: float) -> int:
        """Return how many tokens of its answer a request has at a moment."""
        return bisect.bisect_right(outcome.tokens, at - outcome.sent + 1e-9, key=lambda token: token.at)

    def running(self, at: float, without: Outcome | None = None) -> list[Outcome]:
        """Return the requests that hold blocks at a moment."""
        holds = (Phase.PREFILL, Phase.DECODE)
        return [o for o in self.history.outcomes if o is not without and self.phase(o, at) in holds]

    def waiting(self, at: float, without: Outcome | None = None) -> int:
        """Return how many requests wait at a moment."""
        waits = (Phase.QUEUED, Phase.PREEMPTED)
        return sum(o is not without and self.phase(o, at) in waits for o in self.history.outcomes)

    def shared(self, left: Outcome, right: Outcome) -> int:
        """Return how many tokens the written tokens of `left` and the prompt of `right` share from the start."""
        key = left.request, right.request
        if key not in self._shared:
            self._shared[key] = common_prefix(written_tokens(left), right.prompt)
        return self._shared[key]

    def alike(self, left: Outcome, right: Outcome) -> bool:
        """Return whether two requests have a common identity."""
        return not set(left.identities).isdisjoint(right.identities)

    def share_block(self, left: Outcome, right: Outcome) -> bool:
        """Return whether two requests share a block: equal tokens and a common identity."""
        return self.shared(left, right) >= self.block and self.alike(left, right)

    def sharers(self, outcome: Outcome, at: float) -> int:
        """Return how many other running requests share the first block of this one."""
        return sum(self.share_block(other, outcome) for other in self.running(at, outcome))

    def earlier(self, outcome: Outcome) -> list[Outcome]:
        """Return the requests that were sent before this one, in the order of the workload."""
        return [o for o in self.history.outcomes if o.sent <= outcome.sent and o.request < outcome.request]

    def end(self, tokens: int) -> str:
        """Return where a number of tokens ends in its block: a column of the model."""
        rest = tokens % self.block
        return "at" if rest == 0 else "before" if rest == self.block - 1 else "behind" if rest == 1 else "inside"

    def longest_hit(self, tokens: int) -> int:
        """Return the longest possible hit of so many tokens: the last one is always computed."""
        return max(0, tokens - 1) // self.block * self.block

    def hit_kind(self, hit: int, tokens: int) -> str:
        """Return how long a hit is: a key of the model."""
        if hit <= 0:
            return "none"
        return "most" if hit >= self.longest_hit(tokens) else "part"


def bucket(number: int, *edges: int) -> str:
    """Return the largest edge that is not above a number, as a key of the model."""
    return str(max(edge for edge in edges if edge <= number))
