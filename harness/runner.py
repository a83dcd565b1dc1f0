"""Runs a workload against an engine and writes down what happened.

The runner acts and records; it compares nothing. An engine that says no, dies or falls silent is a fact of the
history, not an exception: only a broken harness raises from here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import msgspec

from adapters.base import (
    CompletionRequest,
    Engine,
    EngineDied,
    EngineError,
    EngineSilent,
    Metrics,
    RequestRefused,
)
from harness.history import History, Identity, Outcome, Residence, StepRecord
from harness.models.adapters import AdapterFiles, place
from harness.workload import (
    Burst,
    Meanwhile,
    Request,
    Route,
    SetAdapter,
    Step,
    Unload,
    Workload,
    nonce_tokens,
    segment_tokens,
)


class Slot(msgspec.Struct, frozen=True):
    """What is behind an adapter name now: the content, and how many loads this run has made."""

    content: str
    load: int


class Run:
    """One workload on one engine under one nonce."""

    def __init__(
        self,
        engine: Engine,
        workload: Workload,
        nonce: str,
        contents: dict[str, AdapterFiles],
        folder: Path,
        *,
        on_outcome: Callable[[Outcome], None] = lambda _: None,
    ) -> None:
        self.engine = engine
        self.on_outcome = on_outcome
        self.workload = workload
        self.nonce = nonce
        self.contents = contents
        self.folder = folder
        self.slots: dict[str, Slot] = {}
        self.loads = 0
        self.outcomes: dict[int, Outcome] = {}
        self.lost: str | None = None
        self.last_metrics = Metrics()
        self.began = time.monotonic()

    def history(self) -> History:
        """Run every step, until the end or until the engine is gone, and leave no adapter name behind."""
        records = []
        self.last_metrics = self.metrics()
        first_request = 0
        for number, step in enumerate(self.workload.steps):
            records.append(self.step(number, step, first_request))
            first_request += len(step.requests) if isinstance(step, Burst) else 0
            if self.lost is not None:
                break
        self.clean_up()
        return History(
            workload=self.workload,
            nonce=self.nonce,
            shape=self.engine.shape,
            outcomes=tuple(self.outcomes[key] for key in sorted(self.outcomes)),
            steps=tuple(records),
            contents={name: files.digest for name, files in self.contents.items()},
            engine_lost=self.lost,
        )

    def step(self, number: int, step: Step, first_request: int) -> StepRecord:
        """Run one step between two looks at the metrics."""
        before, started, error, silent = self.last_metrics, self.clock(), None, False
        try:
            match step:
                case SetAdapter():
                    self.set_adapter(step)
                case Unload(name=name):
                    self.unload(name)
                case Burst():
                    self.burst(number, step, first_request)
        except EngineError as problem:
            error, silent = str(problem), isinstance(problem, EngineSilent)
            self.note_loss(problem)
        finished = self.clock()
        if isinstance(step, Burst):  # nothing else moves a counter
            self.last_metrics = self.metrics()
        return StepRecord(
            step=number,
            started=started,
            finished=finished,
            before=before,
            after=self.last_metrics,
            error=error,
            silent=silent,
        )

    def burst(self, number: int, step: Burst, first_request: int) -> None:
        """Send all requests, make the change in their midst if one is asked for, await all."""
        change = Change(self, step.meanwhile) if step.meanwhile else None
        planned = [self.plan(first_request + i, number, r) for i, r in enumerate(step.requests)]
        with ThreadPoolExecutor(len(planned)) as pool:
            futures: list[Future[Outcome]] = [
                pool.submit(self.ask, outcome, request, change if i == 0 else None)
                for i, (outcome, request) in enumerate(zip(planned, step.requests, strict=True))
            ]
            try:
                problem = change.make() if change else None
            finally:
                answered = [future.result() for future in futures]
        for outcome in answered:
            self.outcomes[outcome.request] = outcome if change is None else change.widen(outcome)
            self.on_outcome(self.outcomes[outcome.request])
        if problem is not None:
            raise problem

    def plan(self, number: int, step: int, request: Request) -> Outcome:
        """The outcome before it happened: real prompt, model name and identity as of now."""
        slot = self.slots.get(request.adapter) if request.adapter else None
        salt = self.actual(request.salt) if request.salt is not None else None
        content = self.contents[slot.content].digest if slot else None
        return Outcome(
            request=number,
            step=step,
            model=self.engine.base_model if request.adapter is None else self.actual(request.adapter),
            prompt=self.prompt(request),
            max_tokens=request.max_tokens,
            identities=(Identity(content, salt),),
            residence=Residence(request.adapter, slot.load if slot else 0, salt),
            sent=0.0,
            finished=0.0,
        )

    def ask(self, plan: Outcome, request: Request, change: Change | None) -> Outcome:
        """Send one request and return the outcome; the wire's troubles become part of it."""
        if request.offset_ms:
            time.sleep(request.offset_ms / 1000)
        sent = self.clock()
        wire = CompletionRequest(
            model=plan.model,
            prompt=plan.prompt,
            max_tokens=request.max_tokens,
            cache_salt=plan.residence.salt,
        )
        try:
            answer = self.engine.complete(wire, change.on_token if change else None)
        except EngineError as problem:
            self.note_loss(problem)
            return msgspec.structs.replace(
                plan, sent=sent, finished=self.clock(), error=str(problem), silent=isinstance(problem, EngineSilent)
            )
        finally:
            if change is not None:
                change.release()
        return msgspec.structs.replace(
            plan,
            sent=sent,
            finished=self.clock(),
            tokens=answer.tokens,
            finish_reason=answer.finish_reason,
            cached_tokens=answer.cached_tokens,
        )

    def prompt(self, request: Request) -> tuple[int, ...]:
        """The tokens of a symbolic prompt under this run's nonce."""
        own = tuple(t for segment in request.prompt.segments for t in segment_tokens(self.nonce, segment))
        if request.prompt.continues is None:
            return nonce_tokens(self.nonce) + own
        before = self.outcomes.get(request.prompt.continues)
        if before is None:
            return nonce_tokens(self.nonce) + own
        return before.prompt + before.token_ids + own

    def set_adapter(self, step: SetAdapter) -> None:
        """Write the files where the step wants them and tell the engine by the step's route."""
        files = self.contents[step.content]
        path = place(files, self.folder / f"{self.actual(step.path)}")
        name = self.actual(step.name)
        if step.route is Route.UNLOAD_LOAD and step.name in self.slots:
            self.unload(step.name)
        self.engine.load_adapter(name, str(path), in_place=step.route is Route.IN_PLACE and step.name in self.slots)
        self.loads += 1
        self.slots[step.name] = Slot(step.content, self.loads)

    def unload(self, name: str) -> None:
        """Unload a symbolic name."""
        self.engine.unload_adapter(self.actual(name))
        self.slots.pop(name, None)

    def actual(self, symbol: str) -> str:
        """The name on the wire. Names, salts and paths are spelled alike, so that they can collide on purpose."""
        return f"{symbol}-{self.nonce}"

    def clean_up(self) -> None:
        """Unload what is left, so that a long run does not fill the engine with names."""
        for name in list(self.slots):
            if self.lost is not None:
                return
            try:
                self.unload(name)
            except RequestRefused:
                self.slots.pop(name, None)
            except EngineError as problem:
                self.note_loss(problem)

    def metrics(self) -> Metrics:
        """The engine's counters, or unknowns once it is gone."""
        if self.lost is not None:
            return Metrics()
        try:
            return self.engine.metrics()
        except EngineError as problem:
            self.note_loss(problem)
            return Metrics()

    def note_loss(self, problem: EngineError) -> None:
        """Remember that the engine is no longer usable: dead, or silent for longer than its patience."""
        if isinstance(problem, EngineDied | EngineSilent) and self.lost is None:
            self.lost = str(problem)

    def clock(self) -> float:
        """Seconds since the run began."""
        return round(time.monotonic() - self.began, 6)


class Change:
    """An adapter change in the midst of a burst, and which requests it overlapped."""

    def __init__(self, run: Run, meanwhile: Meanwhile) -> None:
        self.run = run
        self.meanwhile = meanwhile
        self.due = threading.Event()
        self.began = self.ended = 0.0
        self.made = False
        if meanwhile.after_tokens == 0:
            self.due.set()

    def on_token(self, count: int) -> None:
        """Called by the first request's stream."""
        if count >= self.meanwhile.after_tokens:
            self.due.set()

    def release(self) -> None:
        """The first request is over: what waited for its tokens need wait no more."""
        self.due.set()

    def make(self) -> EngineError | None:
        """Wait for the moment and make the change; a refusal is returned for the step's record."""
        self.due.wait()
        self.began = self.run.clock()
        try:
            self.run.set_adapter(self.meanwhile.change)
            self.made = True
        except EngineError as problem:
            return problem
        finally:
            self.ended = self.run.clock()
        return None

    def widen(self, outcome: Outcome) -> Outcome:
        """Give a request that this change overlapped the new identity beside the old one.

        What a refused change left behind is unknown: then both may be right, also afterwards.
        """
        change = self.meanwhile.change
        if outcome.residence.name != change.name:
            return outcome
        new = Identity(self.run.contents[change.content].digest, outcome.residence.salt)
        if outcome.sent > self.ended and self.made:
            identities: tuple[Identity, ...] = (new,)
        elif outcome.finished < self.began:
            identities = outcome.identities
        else:
            identities = (*outcome.identities, new) if new not in outcome.identities else outcome.identities
        slot = self.run.slots.get(change.name)
        residence = outcome.residence
        if identities == (new,) and slot is not None:
            residence = Residence(residence.name, slot.load, residence.salt)
        return msgspec.structs.replace(outcome, identities=identities, residence=residence)
