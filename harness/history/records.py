"""The record of one run of a workload: frozen facts that can be written to JSON and read again, without judgement.

A history can be judged without the engine. So it contains all that a checker or a report needs: tokens with times,
counts, errors, the adapter versions that a request may have used, and the metrics around each step. What follows from
its tokens alone is here too: of which tokens a request left KV, and which requests may share KV.
"""

from __future__ import annotations

import msgspec

from coldproof.adapters.protocol.engine_steps import EngineStep
from coldproof.adapters.protocol.metrics import Metrics
from coldproof.adapters.protocol.pooling import Rows
from coldproof.adapters.protocol.provenance import WrongRead
from coldproof.adapters.protocol.requests import PLAIN, ResponseOptions, Stage, Token, ids_of
from coldproof.adapters.protocol.resets import ResetScope
from coldproof.adapters.protocol.restarts import EngineChange
from coldproof.adapters.protocol.shape import EngineShape
from coldproof.adapters.protocol.sides import Side
from coldproof.adapters.protocol.weights import PauseMode, WeightPolicy, WeightRoute
from coldproof.harness.history.kv_events import RunEvents
from coldproof.harness.workload.steps import START_WEIGHTS, Restart, Workload

ASSUMED_BLOCK = 16  # tokens of a block, if the engine does not report its size


class Identity(msgspec.Struct, frozen=True, omit_defaults=True):
    """All that a token's KV depends on besides the tokens before it: adapter content (never its name), salt, weights.

    `weights`: the digest of the base model's weights; None: those with which the engine was started.
    `engine`: what was different about the engine, if another one replaced it over the same storage.
    """

    adapter: str | None
    salt: str | None
    weights: str | None = None
    engine: EngineChange = EngineChange.NOTHING


class CachePartition(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an engine may key a prefix by: an adapter name, one of its loads, a salt, the number of weight updates.

    Reuse is required only within one partition; it is allowed within one identity, on one rank.
    `rank`: the rank that served the request, if the ranks have caches of their own; None: unknown, or one cache.
    """

    name: str | None
    load: int
    salt: str | None
    updates: int = 0
    rank: int | None = None


class Outcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request as sent and as answered. Times are seconds since the run began.

    `prompt`: the ids of what the model sees, tokens and embedding rows. So equal ids are equal content.
    `identities` has every identity that the engine may correctly have used: one, or several if a change of the adapter
    or of the weights overlapped the request. `error` says why there is no answer; `tokens` are those before the error.
    """

    request: int
    step: int
    model: str
    prompt: tuple[int, ...]
    max_tokens: int
    identities: tuple[Identity, ...]
    partition: CachePartition
    options: ResponseOptions = PLAIN
    hidden: tuple[int, ...] = ()  # of a prompt with rows: see CompletionRequest
    session: str | None = None  # of which it is a turn; its prompt includes what that held
    streaming: bool = False  # whether that keeps whole answers, and its KV to itself
    tokens: tuple[Token, ...] = ()
    text: str = ""
    others: tuple[tuple[Token, ...], ...] = ()
    prompt_logprobs: tuple[float | None, ...] | None = None
    pooled: Rows | None = None  # of an answer in vectors
    rendered: tuple[int, ...] | None = None  # the prompt's ids as the engine reports them, if it does
    finish_reason: str | None = None
    cached_tokens: int | None = None
    cached_between: tuple[int, int] | None = None  # bounds from the engine's steps, where it reports no count
    preemptions: int | None = None
    preempted_at: tuple[float, ...] = ()  # seconds since it was sent, where the engine reports it
    aborted: Stage | None = None
    sent: float
    finished: float
    error: str | None = None
    refused: bool = False  # the error is the engine's refusal
    silent: bool = False
    busy: int = 0  # how often the server refused it as busy before it took it

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Return the token ids of the answer."""
        return ids_of(self.tokens)

    @property
    def hit_at_least(self) -> int:
        """Return the known lower bound of the prompt tokens that came from the cache; 0 if nothing is known."""
        known = self.cached_between or (0, 0)
        return known[0] if self.cached_tokens is None else self.cached_tokens

    @property
    def hit_at_most(self) -> int | None:
        """Return the known upper bound of the prompt tokens that came from the cache; None if nothing is known."""
        if self.cached_tokens is not None:
            return self.cached_tokens
        return None if self.cached_between is None else self.cached_between[1]

    def since_start(self, after: float) -> float:
        """Convert a time since the request was sent to the run's clock. It is rounded: equal times compare equal."""
        return round(self.sent + after, 6)

    @property
    def answered(self) -> bool:
        """Return whether there is a complete answer to judge."""
        return self.error is None and self.aborted is None

    @property
    def overlapped(self) -> bool:
        """Return whether a change of its adapter or of the weights overlapped this request."""
        return len(self.identities) > 1


class QueueSample(msgspec.Struct, frozen=True, kw_only=True):
    """A sample of the engine's queue and pool; None where it does not report a value."""

    at: float
    running: float | None
    waiting: float | None
    pool_usage: float | None

    def __str__(self) -> str:
        known = {"running": self.running, "waiting": self.waiting}
        words = [f"{name} {count:.0f}" for name, count in known.items() if count is not None]
        words += [f"pool {self.pool_usage:.0%} in use"] if self.pool_usage is not None else []
        return ", ".join(words) or "the engine does not report its queue"


class ResetRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A cache reset: when it was requested, when it was answered, and whether the engine reported success.

    `scope`: what was reset in addition to the prefix cache.
    """

    began: float
    ended: float
    success: bool
    scope: tuple[ResetScope, ...] = ()


class SideRestart(msgspec.Struct, frozen=True):
    """A side that was killed, and when it answered again."""

    began: float
    ended: float
    side: Side

    def overlaps(self, outcome: Outcome) -> bool:
        """Return whether a request was in flight meanwhile: it may have lost its side."""
        return outcome.sent <= self.ended and self.began <= outcome.finished


class HalfChanged(msgspec.Struct, frozen=True):
    """A time during which a change was made on one side of a pair, `first`, and not yet on the other."""

    began: float
    ended: float
    first: Side

    def contains(self, outcome: Outcome) -> bool:
        """Return whether a request was sent and answered meanwhile."""
        return self.began <= outcome.sent and outcome.finished <= self.ended


class WeightUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """An update of the weights. `version`: its symbolic name. `weights`: the digest; None: those of the start.

    `checksum`: the engine's checksum after the update, if it has one. `error`: why the engine refused it.
    """

    began: float
    ended: float
    version: str
    weights: str | None
    route: WeightRoute
    checksum: str | None = None
    error: str | None = None


class PauseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A pause or a sleep: when it was requested and confirmed, and when the end of it was requested and confirmed.

    `level`: that of a sleep; None for a pause. `error`: why the engine refused it.
    """

    began: float
    ended: float
    mode: PauseMode
    clear: bool
    level: int | None = None
    resumed: float | None = None
    running: float | None = None
    error: str | None = None

    def contains(self, at: float) -> bool:
        """Return whether a time lies within the pause."""
        return self.error is None and self.began <= at and (self.running is None or at <= self.running)


class StepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One step: when it ran, its error, and the engine's metrics before and after it.

    Counters count from the run's start. `queue` was sampled while several requests ran; `change_began` and
    `change_ended` are the times of the change during a burst. `moved_tokens` is the number of tokens that the engine
    reports as saved or restored.
    """

    step: int
    started: float
    finished: float
    before: Metrics
    after: Metrics
    queue: tuple[QueueSample, ...] = ()
    change_began: float | None = None
    change_ended: float | None = None
    moved_tokens: int | None = None
    error: str | None = None
    silent: bool = False


class EngineAge(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an engine has done since its start, apart from its calibration.

    `names`, `salts`: how many different ones it has seen.
    """

    requests: int = 0
    aborts: int = 0
    preemptions: int = 0
    evictions: int = 0
    resets: int = 0
    loads: int = 0
    updates: int = 0
    names: int = 0
    salts: int = 0


class History(msgspec.Struct, frozen=True, kw_only=True):
    """A complete run of one workload."""

    workload: Workload
    nonce: str
    shape: EngineShape
    outcomes: tuple[Outcome, ...]
    steps: tuple[StepRecord, ...]
    contents: dict[str, str]  # symbolic content -> digest of the adapter files
    resets: tuple[ResetRecord, ...] = ()
    side_resets: tuple[ResetRecord, ...] = ()  # those that left the prefix cache as it was
    side_restarts: tuple[SideRestart, ...] = ()
    half_changed: tuple[HalfChanged, ...] = ()
    weights: dict[str, str] = {}  # symbolic version -> digest of the weights, without those of the start
    updates: tuple[WeightUpdate, ...] = ()
    start_checksum: str | None = None  # the engine's checksum of the weights with which it was started
    pauses: tuple[PauseRecord, ...] = ()
    policy: WeightPolicy = WeightPolicy.ON_RESET  # what the engine promises after an update
    events: RunEvents | None = None  # published KV events, where the engine has them
    wrong_reads: tuple[WrongRead, ...] = ()  # where the engine reports whose KV was read
    engine_steps: tuple[EngineStep, ...] | None = None  # names are the numbers of requests; None: not recorded
    age: EngineAge = EngineAge()  # what the engine had done before this run
    left_over: Metrics = Metrics()  # gauges: what earlier runs left on an engine that was idle at first
    stalled: QueueSample | None = None  # the queue when there was no progress for too long
    engine_lost: str | None = None  # why the engine was lost, if it was
    log_tail: str = ""  # the end of its log in that case

    def describe_adapter(self, digest: str | None) -> str:
        """Return an adapter content by the name that the steps use, or by its digest if they use none."""
        if digest is None:
            return "base model"
        named = (f"adapter {name}" for name, known in self.contents.items() if known == digest)
        return next(named, f"adapter content {digest}")

    def describe_request(self, number: int) -> str:
        """Return a description of a request: its number, and its endpoint if it names one."""
        asked = (request.endpoint for one, _, request in self.workload.requests() if one == number)
        endpoint = next(asked, None)
        return f"request {number}" if endpoint is None else f"request {number} at {endpoint.value}"

    def describe_identity(self, identity: Identity) -> str:
        """Return a description of an identity."""
        adapter = self.describe_adapter(identity.adapter)
        if identity.engine is not EngineChange.NOTHING:
            adapter += f" with {identity.engine}"
        salt = "" if identity.salt is None else f", salt {identity.salt!r}"
        return f"{adapter}{salt}{f', {self.describe_weights(identity.weights)}' if self.updates else ''}"

    def describe_weights(self, digest: str | None) -> str:
        """Return a version of the weights by the name that the steps use, or by its digest if they use none."""
        if digest is None:
            return f"weights {START_WEIGHTS!r}"
        return next(
            (f"weights {name!r}" for name, known in self.weights.items() if known == digest), f"weights {digest}"
        )


def reset_everything(history: History, reset: ResetRecord) -> bool:
    """Return whether a reset reported success, and covered every tier from which KV can come."""
    return reset.success and (not history.shape.second_tier or ResetScope.SECOND_TIER in reset.scope)


def restart_times(history: History) -> list[float]:
    """Return when the engine was replaced by another one, in order."""
    steps = history.workload.steps
    return [record.finished for record in history.steps if isinstance(steps[record.step], Restart)]


def has_sessions(history: History) -> bool:
    """Return whether a request is a turn of a session, which holds its blocks and its place until it is closed."""
    return any(outcome.session for outcome in history.outcomes)


def hit_shares(history: History) -> str:
    """Return the cached share of each prompt as text, in the order of sending."""
    shares = (f"{100 * (o.cached_tokens or 0) / len(o.prompt):.1f} % of {len(o.prompt):,}" for o in history.outcomes)
    return ", ".join(shares) + " tokens"


def common_prefix(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    """Return how many leading tokens two sequences share, by bisection: comparing slices is fast."""
    lowest, beyond = 0, min(len(left), len(right)) + 1
    if left[: beyond - 1] == right[: beyond - 1]:
        return beyond - 1
    while beyond - lowest > 1:
        middle = (lowest + beyond) // 2
        if left[lowest:middle] == right[lowest:middle]:
            lowest = middle
        else:
            beyond = middle
    return lowest


def assumed_block(history: History) -> int:
    """Return the tokens of a block; a usual number if the engine does not report it."""
    return history.shape.block_size or ASSUMED_BLOCK


def holds_written_block(other: Outcome, outcome: Outcome, block: int) -> bool:
    """Return whether a prompt, without its last token, contains a whole block that the decode of another one wrote."""
    return common_prefix(written_tokens(other), outcome.prompt[:-1]) // block * block > len(other.prompt)


def written_tokens(outcome: Outcome) -> tuple[int, ...]:
    """Return the tokens whose KV a request wrote: not the last sampled one, whose KV no pass computes (vllm#54193)."""
    return outcome.prompt + outcome.token_ids[:-1]


def written_sequences(outcome: Outcome, *, drafts: bool = False) -> list[tuple[int, ...]]:
    """Return the written tokens of each answer: another prompt may continue as a sampled answer does.

    `drafts`: the last token of an answer may be a draft that was accepted, which is computed before it is accepted.
    """
    answers = (outcome.tokens, *outcome.others)
    return [outcome.prompt + ids_of(tokens if drafts else tokens[:-1]) for tokens in answers]


def counts_drafts(history: History) -> bool:
    """Return whether the engine counts drafts, which it does with speculative decoding."""
    return bool(history.steps) and history.steps[-1].after.drafted_tokens is not None


def may_keep_last(history: History) -> bool:
    """Return whether the KV of an answer's last token may be there: as an accepted draft, or as the engine does it."""
    return history.shape.computes_last or counts_drafts(history)


def requests_with_same_identity(history: History, outcome: Outcome) -> list[Outcome]:
    """Return other requests that may have had the same identity and were sent before this one ended."""
    return [
        other
        for other in history.outcomes
        if other.request != outcome.request
        and other.sent < outcome.finished
        and set(other.identities) & set(outcome.identities)
    ]
