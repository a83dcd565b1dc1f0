"""What happened when a workload ran: frozen facts, JSON in and out, and no opinion.

Whoever judges a history must be able to do so without the engine, so everything a checker or a report will want is
here: tokens with times, counts, errors, which adapter versions a request may have met, and the metrics around a step.
"""

from __future__ import annotations

import msgspec

from adapters.base import EngineShape, Metrics, Token
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
    tokens: tuple[Token, ...] = ()
    finish_reason: str | None = None
    cached_tokens: int | None = None
    sent: float
    finished: float
    error: str | None = None
    silent: bool = False

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The answer's ids."""
        return tuple(token.id for token in self.tokens)

    @property
    def overlapped(self) -> bool:
        """Whether an adapter change fell into this request's life."""
        return len(self.identities) > 1


class StepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One step: when it ran, what it said, and the engine's metrics before and after it."""

    step: int
    started: float
    finished: float
    before: Metrics
    after: Metrics
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
    engine_lost: str | None = None  # why the engine was gone at the end, if it was
