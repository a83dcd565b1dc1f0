"""Requests and answers. A count that the engine does not report is None, never 0."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable

import msgspec

from coldproof.adapters.protocol.endpoints import Endpoint
from coldproof.adapters.protocol.pooling import Rows, Task


class Token(msgspec.Struct, frozen=True):
    """One generated token. `at`: seconds since the request was sent. `gap`: the top-2 logprob margin in nats."""

    id: int
    at: float
    logprob: float | None = None
    gap: float | None = None


def ids_of(tokens: Iterable[Token]) -> tuple[int, ...]:
    """Return the token ids."""
    return tuple(token.id for token in tokens)


class ResponseOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Response options of a request. The default is plain greedy tokens.

    `answers` > 1: that many answers, sampled at temperature 1 from a fixed seed, because greedy answers would be equal.
    `pattern`: a regular expression that structured output must match.
    `pooled`: the answer is pooled, and has no tokens.
    `most_loaded`, `most_stored`: the maximum number of tokens that are loaded from a second KV tier, and stored in it,
    for this request. They change no answer.
    """

    answers: int = 1
    stop: tuple[str, ...] = ()
    pattern: str | None = None
    prompt_logprobs: bool = False
    logprobs: bool = False
    pooled: Task | None = None
    most_loaded: int | None = None
    most_stored: int | None = None

    @property
    def of_the_answer(self) -> ResponseOptions:
        """Return these options without those that change no answer."""
        return msgspec.structs.replace(self, most_loaded=None, most_stored=None)

    def with_scores(self) -> ResponseOptions:
        """Return these options with logprobs. A pooled answer has none."""
        return msgspec.structs.replace(self, logprobs=True) if self.pooled is None else self

    def plain(self) -> ResponseOptions:
        """Return the default for an answer of this kind: tokens, or pooled."""
        return PLAIN if self.pooled is None else ResponseOptions(pooled=self.pooled)

    @property
    def needs_whole_prompt(self) -> bool:
        """Return whether an engine may bypass the cache, because the answer needs results at every position."""
        return self.prompt_logprobs or (self.pooled is not None and self.pooled.of_each_token)


PLAIN = ResponseOptions()
ENGINE_ABORT = "abort"  # the finish reason of a request that its engine ended


class Stage(enum.StrEnum):
    """The stage of a request when its client disconnected, as far as it could be observed.

    A preempted request that is reported as such is not QUEUED: it has run before.
    """

    QUEUED = "queued"
    PREFILL = "in prefill"
    DECODE = "while decoding"
    PREEMPTED = "preempted"
    UNSEEN = "unseen"


class Abort(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When the client disconnects: after `after_tokens` tokens or, with 0, after `after_ms` milliseconds without one.

    `at`: also wait until the engine reports that the request is queued or in prefill, because the time until then
    depends on the machine. If the engine never reports it, the client disconnects at the first token. With PREEMPTED,
    the client waits for a preemption, with or without tokens; if there is none, it waits for the end of its answer.
    """

    after_tokens: int = 0
    after_ms: int = 0
    at: Stage | None = None

    def is_due(self, tokens: int, waited_ms: int, stage: Callable[[], Stage]) -> bool:
        """Return whether the client disconnects now. `stage` returns the request's stage; called only if needed."""
        if self.at is Stage.PREEMPTED:
            return tokens >= self.after_tokens and waited_ms >= self.after_ms and stage() is Stage.PREEMPTED
        if tokens:
            return tokens >= max(1, self.after_tokens)
        waited = self.after_tokens == 0 and waited_ms >= self.after_ms
        return waited and (self.at is None or stage() is self.at)


class Message(msgspec.Struct, frozen=True):
    """One message of a chat."""

    role: str
    content: str


class CompletionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request, greedy unless its response options (`response_options`) say otherwise.

    `model`: a served name of the base model or an adapter. `messages`: if given, the request uses the chat route and
    template; `prompt` is then the rendered token ids.
    `hidden`: for a prompt with embedding rows, what the request also carries at each position although the model does
    not see it: the token id under a row, the row under a token (see `embedding_rows.py`). Empty: nothing.
    `endpoint`: the route for it; None: completions, with messages chats.
    `rank`: the rank that serves it, of those that each have a cache; None: the engine chooses.
    `hand_over_ms`: with prefill and decode apart, how long after the prefill the decoder gets it (SIDE_FAILURES).
    `session`: the session of which it is a turn; `held`: how many tokens of its prompt that session holds. 0 opens it.
    `streaming`: the session is a streaming one.
    `cold`: the engine itself must compute the whole prompt (COLD_ANSWERS).
    """

    model: str
    prompt: tuple[int, ...]
    max_tokens: int
    cache_salt: str | None = None
    priority: int = 0
    messages: tuple[Message, ...] | None = None
    options: ResponseOptions = PLAIN
    abort: Abort | None = None
    hidden: tuple[int, ...] = ()
    endpoint: Endpoint | None = None
    rank: int | None = None
    hand_over_ms: int = 0
    session: str | None = None
    held: int = 0
    streaming: bool = False
    cold: bool = False
    tag: str = ""  # becomes part of the engine's request id, so that block provenance can name the request


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request. Optional fields are None if the engine does not report them: missing is not zero.

    `tokens`, `text`: the first answer. `others`: the other answers, if several were requested.
    `finish_reason`: "length" if `max_tokens` ended the answer, None if the client did not see its end.
    `cached_tokens`: the number of prompt tokens from the cache, as the engine reports it.
    `cached_between`: minimum and maximum of that number, if they follow from something else than a reported count, for
    example from the number of prefill steps.
    `prompt_logprobs`: one for each prompt token, None for the first.
    `prompt_best`: the logprob of the best candidate at each prompt position, if reported with `prompt_logprobs`.
    `prompt`: the prompt's token ids that the engine reports.
    `pooled`: the vectors of a pooled answer.
    `aborted`: the stage in which the client disconnected.
    `preemptions`: the number of preemptions of this request. `preempted_at`: their times, in seconds after it was sent.
    `busy`: how often the server refused the request as busy before it took it.
    """

    tokens: tuple[Token, ...]
    finish_reason: str | None
    cached_tokens: int | None
    cached_between: tuple[int, int] | None = None
    text: str = ""
    others: tuple[tuple[Token, ...], ...] = ()
    prompt_logprobs: tuple[float | None, ...] | None = None
    prompt: tuple[int, ...] | None = None
    aborted: Stage | None = None
    preemptions: int | None = None
    preempted_at: tuple[float, ...] = ()
    prompt_best: tuple[float | None, ...] | None = None
    pooled: Rows | None = None
    busy: int = 0


class Arrival(msgspec.Struct, frozen=True):
    """A request and the time at which it is sent, in milliseconds after the start of the burst."""

    request: CompletionRequest
    offset_ms: int = 0
