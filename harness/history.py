"""What happened when a workload ran: frozen facts, JSON in and out, and no opinion.

Whoever judges a history must be able to do so without the engine, so everything a checker or a report will want is
here: tokens with times, counts, errors, which adapter versions a request may have met, and the metrics around a step.
"""

from __future__ import annotations

import msgspec

from adapters.base import PLAIN, EngineShape, Metrics, Stage, Surface, Token
from adapters.provenance import WrongRead
from harness.event_blocks import RunEvents
from harness.workload import Workload


class Identity(msgspec.Struct, frozen=True):
    """All that a token's KV depends on beside the tokens before it: adapter content (never its name) and salt."""

    adapter: str | None
    salt: str | None

    def __str__(self) -> str:
        adapter = "base model" if self.adapter is None else f"adapter content {self.adapter}"
        return adapter if self.salt is None else f"{adapter}, salt {self.salt!r}"


class Residence(msgspec.Struct, frozen=True):
    """What an engine could key a prefix by without error: a name, one of its loads, and a salt.

    Reuse is owed only within one residence; it is allowed within one identity.
    """

    name: str | None
    load: int
    salt: str | None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One request as sent and as answered. Times are seconds since the run began.

    `identities` holds every identity that the engine may rightly have used: one, or two when an adapter change
    overlapped the request. `error` says why there is no answer; then the tokens are what came before it.
    """

    request: int
    step: int
    model: str
    prompt: tuple[int, ...]
    max_tokens: int
    identities: tuple[Identity, ...]
    residence: Residence
    surface: Surface = PLAIN
    tokens: tuple[Token, ...] = ()
    text: str = ""
    others: tuple[tuple[Token, ...], ...] = ()
    prompt_logprobs: tuple[float | None, ...] | None = None
    rendered: tuple[int, ...] | None = None  # the prompt's ids as the engine tells them, where it does
    finish_reason: str | None = None
    cached_tokens: int | None = None
    cached_between: tuple[int, int] | None = None  # what the engine's steps say of them, where it gives no count
    preemptions: int | None = None
    preempted_at: tuple[float, ...] = ()  # seconds since it was sent, where the engine tells when
    aborted: Stage | None = None
    sent: float
    finished: float
    error: str | None = None
    refused: bool = False  # the error is an answer: the engine said no
    silent: bool = False

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The answer's ids."""
        return tuple(token.id for token in self.tokens)

    @property
    def hit_at_least(self) -> int:
        """Prompt tokens that came from the cache, as far as that is known; 0 where nothing is."""
        if self.cached_tokens is not None:
            return self.cached_tokens
        return 0 if self.cached_between is None else self.cached_between[0]

    @property
    def hit_at_most(self) -> int | None:
        """The same from above; None where nothing is known."""
        if self.cached_tokens is not None:
            return self.cached_tokens
        return None if self.cached_between is None else self.cached_between[1]

    @property
    def answered(self) -> bool:
        """Whether there is a whole answer to judge."""
        return self.error is None and self.aborted is None

    @property
    def overlapped(self) -> bool:
        """Whether an adapter change fell into this request's life."""
        return len(self.identities) > 1


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine said of its queue and pool at one moment; None where it does not."""

    at: float
    running: float | None
    waiting: float | None
    pool_usage: float | None

    def __str__(self) -> str:
        known = {"running": self.running, "waiting": self.waiting}
        words = [f"{name} {count:.0f}" for name, count in known.items() if count is not None]
        words += [f"pool {self.pool_usage:.0%} in use"] if self.pool_usage is not None else []
        return ", ".join(words) or "the engine does not tell its queue"


class ResetRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A cache reset: when it was asked for, when answered, and whether the engine says that it did it."""

    began: float
    ended: float
    success: bool


class StepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One step: when it ran, what it said, and the engine's metrics before and after it.

    Counters count from the run's start. `queue` was looked at while several requests were in flight; `change_began` and
    `change_ended` are of the change in a burst's midst. `moved_tokens`: so many it says it saved or restored.
    """

    step: int
    started: float
    finished: float
    before: Metrics
    after: Metrics
    queue: tuple[Queue, ...] = ()
    change_began: float | None = None
    change_ended: float | None = None
    moved_tokens: int | None = None
    error: str | None = None
    silent: bool = False


class History(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run of one workload."""

    workload: Workload
    nonce: str
    shape: EngineShape
    outcomes: tuple[Outcome, ...]
    steps: tuple[StepRecord, ...]
    contents: dict[str, str]  # symbolic content -> digest of the adapter files
    resets: tuple[ResetRecord, ...] = ()
    events: RunEvents | None = None  # what was published about the cache, where the engine does that
    wrong_reads: tuple[WrongRead, ...] = ()  # where the engine tells whose KV was read
    left_over: Metrics = (
        Metrics()
    )  # gauges: what runs before this one left behind on an engine that held nothing at first
    stalled: Queue | None = None  # the queue when nothing had moved for too long
    engine_lost: str | None = None  # why the engine was gone at the end, if it was
    log_tail: str = ""  # the end of its log then


def hit_shares(history: History) -> str:
    """How much of each prompt came from the cache, in the order of sending."""
    shares = (f"{100 * (o.cached_tokens or 0) / len(o.prompt):.1f} % of {len(o.prompt):,}" for o in history.outcomes)
    return ", ".join(shares) + " tokens"
