"""Converts a workload's requests to requests of the engine, and the engine's answers to outcomes.

An error of the engine becomes part of the outcome. Nothing is compared here.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.endpoints import Endpoint
from coldproof.adapters.protocol.engine import Engine, EngineError, EngineSilent, RequestRefused, Served
from coldproof.adapters.protocol.requests import ENGINE_ABORT, Arrival, Completion, CompletionRequest, Message, Stage
from coldproof.adapters.protocol.restarts import EngineChange
from coldproof.adapters.protocol.sessions import HoldsSessions
from coldproof.adapters.protocol.weights import PauseMode
from coldproof.harness.execution.runner.adapter_names import AdapterNames
from coldproof.harness.execution.runner.burst import Change
from coldproof.harness.execution.runner.served_weights import ServedWeights
from coldproof.harness.history.prompts import hidden_of, messages_of, tokens_of
from coldproof.harness.history.provenance import request_tag
from coldproof.harness.history.records import CachePartition, Identity, Outcome, PauseRecord
from coldproof.harness.history.weights import with_weights
from coldproof.harness.workload.steps import Request, SetAdapter


class RunRequests:
    """The requests of one run, and the outcomes of those that have ended.

    `scored`: request the logprobs of all answers' tokens, if the engine supports them.
    """

    def __init__(
        self, engine: Engine, nonce: str, adapters: AdapterNames, weights: ServedWeights, *, scored: bool
    ) -> None:
        self.engine, self.nonce, self.adapters, self.weights = engine, nonce, adapters, weights
        self.outcomes: dict[int, Outcome] = {}
        self.chats: dict[int, tuple[Message, ...]] = {}
        self.sessions: dict[str, None] = {}  # their names in the engine, in the order of opening
        self.difference = EngineChange.NOTHING  # what is different about the engine
        self.scored = scored and engine.capabilities[Capability.LOGPROBS].present is True
        self.tagged = engine.capabilities[Capability.PROVENANCE].present is True

    def use_difference(self, difference: EngineChange) -> None:
        """Send what follows to an engine about which this is different."""
        self.difference = difference if difference.of_kv else EngineChange.NOTHING

    def plan(self, number: int, step: int, request: Request) -> Outcome:
        """Return the outcome to be filled in later, with the prompt, model name and identity as of now."""
        salt = self.adapters.actual(request.salt) if request.salt is not None else None
        return Outcome(
            request=number,
            step=step,
            model=self.adapters.model(request.adapter),
            prompt=self.prompt(number, request),
            hidden=hidden_of(request, self.nonce, self.outcomes),
            session=request.session,
            streaming=request.streaming,
            max_tokens=request.max_tokens,
            options=request.options,
            identities=(Identity(self.adapters.digest(request.adapter), salt, self.weights.digest, self.difference),),
            partition=CachePartition(
                request.adapter, self.adapters.load(request.adapter) or 0, salt, rank=self.rank(request)
            ),
            sent=0.0,
            finished=0.0,
        )

    def prompt(self, number: int, request: Request) -> tuple[int, ...]:
        """Return a request's token ids. For a chat, these are what the engine renders its messages to."""
        if not request.chat:
            return tokens_of(request, self.nonce, self.outcomes)
        self.chats[number] = messages_of(request, self.nonce, self.chats, self.outcomes)
        return self.engine.render(self.chats[number])

    def rank(self, request: Request) -> int | None:
        """Return the rank that a request names; None where requests cannot choose it: then one cache serves all."""
        return request.rank if self.engine.capabilities[Capability.RANK_CHOICE].present is True else None

    def wire(self, plan: Outcome, request: Request) -> Arrival:
        """Return the request as the adapter gets it, with its time. Only completions and chats return scores."""
        endpoint = request.endpoint
        scored = self.scored and endpoint in (None, Endpoint.COMPLETIONS, Endpoint.CHAT)
        sent = CompletionRequest(
            model=plan.model,
            prompt=plan.prompt,
            max_tokens=request.max_tokens,
            cache_salt=plan.partition.salt,
            priority=request.priority,
            messages=self.chats.get(plan.request) if endpoint is None or not endpoint.takes_ids else None,
            options=request.options.with_scores() if scored else request.options,
            abort=request.abort,
            hidden=plan.hidden,
            endpoint=endpoint,
            rank=plan.partition.rank,
            hand_over_ms=request.hand_over_ms,
            session=self.session(request),
            held=held_tokens(plan, request),
            streaming=request.streaming,
            tag=request_tag(self.nonce, plan.request) if self.tagged else "",
        )
        return Arrival(sent, request.offset_ms)

    def session(self, request: Request) -> str | None:
        """Return the engine's name of a request's session, and remember it, so that it is closed; None without one."""
        if not request.session:
            return None
        name = self.adapters.actual(request.session)
        self.sessions[name] = None
        return name

    def close_session(self, name: str, *, aborted: bool) -> None:
        """End a session, by its name in the engine. Raises RequestRefused if the engine has no sessions."""
        if not isinstance(self.engine, HoldsSessions):
            raise RequestRefused(501, self.engine.capabilities[Capability.SESSIONS].evidence)
        self.sessions.pop(name, None)
        self.engine.close_session(name, aborted=aborted)

    def close_sessions(self) -> None:
        """End the sessions that the workload has left open."""
        for name in list(self.sessions):
            self.close_session(name, aborted=False)

    def widened(self, outcome: Outcome, change: Change | None) -> Outcome:
        """Return the outcome with every identity that a change during its burst allows."""
        if change is not None and isinstance(change.change, SetAdapter):
            digest = self.adapters.contents[change.change.content].digest
            outcome = change.widen(outcome, digest, self.adapters.load(change.change.name))
        return with_weights(ended_by_pause(outcome, self.weights.pauses), self.weights.updates, self.weights.pauses)


def held_tokens(plan: Outcome, request: Request) -> int:
    """Return how many leading tokens of a prompt its session holds: all but those of its own segments, if it is a later
    turn.
    """
    if not request.session or request.prompt.continues is None:
        return 0
    return len(plan.prompt) - sum(segment.length for segment in request.prompt.segments)


def ended_by_pause(outcome: Outcome, pauses: Sequence[PauseRecord]) -> Outcome:
    """Return an outcome that the engine ended because of a pause as an aborted one: nobody else may end a request.

    vLLM's server sends no finish reason for a request that a pause ended before its first token (0.32.0: the stream of
    a completion leaves out chunks without tokens).
    """
    over = any(
        p.error is None and p.mode is PauseMode.ABORT and outcome.sent <= p.ended and outcome.finished >= p.began
        for p in pauses
    )
    silent = outcome.error is None and outcome.finish_reason is None and not outcome.tokens and not outcome.pooled
    if not over or not (outcome.finish_reason == ENGINE_ABORT or silent):
        return outcome
    return msgspec.structs.replace(outcome, aborted=Stage.DECODE if outcome.tokens else Stage.UNSEEN)


def outcome(plan: Outcome, served: Served, *, began: float, stall: str | None) -> Outcome:
    """Return the outcome of a planned request. `began`: start of the run; `stall`: why the burst was aborted, if so."""
    times = {"sent": round(served.sent - began, 6), "finished": round(served.finished - began, 6)}
    answer = served.result
    if isinstance(answer, EngineError):
        refused = isinstance(answer, RequestRefused) and answer.status < 500  # this one request
        silent = isinstance(answer, EngineSilent) or (stall is not None and not refused)
        said = stall if stall is not None and silent else str(answer)
        return msgspec.structs.replace(plan, **times, error=said, refused=refused, silent=silent)
    return answered(msgspec.structs.replace(plan, **times), answer)


def answered(plan: Outcome, answer: Completion) -> Outcome:
    """Return a planned request with its answer."""
    return msgspec.structs.replace(
        plan,
        tokens=answer.tokens,
        text=answer.text,
        others=answer.others,
        prompt_logprobs=answer.prompt_logprobs,
        pooled=answer.pooled,
        rendered=answer.prompt,
        finish_reason=answer.finish_reason,
        cached_tokens=answer.cached_tokens,
        cached_between=answer.cached_between,
        preemptions=answer.preemptions,
        preempted_at=answer.preempted_at,
        aborted=answer.aborted,
        busy=answer.busy,
    )
