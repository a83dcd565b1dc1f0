"""Runs a workload against an engine and writes down what happened.

The runner acts and records; it compares nothing. An engine that says no, dies or falls silent is a fact of the
history, not an exception: only a broken harness raises from here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from adapters.base import (
    Arrival,
    Capability,
    CompletionRequest,
    Engine,
    EngineDied,
    EngineError,
    EngineSilent,
    Message,
    Metrics,
    RequestRefused,
    Served,
    Surface,
)
from adapters.kv_events import Published
from adapters.provenance import WrongRead
from adapters.rare import Saves
from harness.burst import Change, Watch
from harness.event_blocks import RunEvents
from harness.event_ledger import EventLedger
from harness.history import History, Identity, Outcome, Queue, ResetRecord, Residence, StepRecord
from harness.models.adapters import AdapterFiles, place
from harness.prompting import messages_of, tokens_of
from harness.provenance import tag
from harness.workload import (
    Burst,
    Idle,
    Meanwhile,
    Request,
    Reset,
    RestoreState,
    Route,
    SaveState,
    SetAdapter,
    Step,
    Unload,
    Workload,
    spelled,
)

Told = TypeVar("Told")

STALL_SECONDS = 60.0  # where no calibration says how fast this engine answers
SETTLE_SECONDS, SETTLE_LOOKS = 5.0, 25  # how long an engine may take to give everything back


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
        stall_seconds: float = STALL_SECONDS,
        settle_seconds: float = SETTLE_SECONDS,
        ledger: EventLedger | None = None,
        scored: bool = False,
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
        self.chats: dict[int, tuple[Message, ...]] = {}
        self.resets: list[ResetRecord] = []
        self.stall_seconds, self.settle_seconds = stall_seconds, settle_seconds
        self.ledger = ledger or EventLedger()
        self.scored = scored and engine.capabilities[Capability.LOGPROBS].present is True
        self.stalled: Queue | None = None
        self.lost: str | None = None
        self.tells_writers = engine.capabilities[Capability.PROVENANCE].present is True
        self.baseline = self.last_metrics = Metrics()
        self.began = engine.clock()

    def history(self) -> History:
        """Run every step, until the end or until the engine is gone, and leave no adapter name behind."""
        records = []
        self.empty_first()
        self.ledger.pass_over(self.taken())
        self.baseline = self.scrape()
        self.last_metrics = self.baseline.since(self.baseline)
        first_request = 0
        for number, step in enumerate(self.workload.steps):
            records.append(self.step(number, step, first_request))
            first_request += len(step.requests) if isinstance(step, Burst) else 0
            if self.lost is not None:
                break
        self.clean_up()
        events = self.events()
        unread: tuple[WrongRead, ...] = ()
        wrong_reads = self.told(self.engine.wrong_reads, unread)
        return History(
            workload=self.workload,
            nonce=self.nonce,
            shape=self.engine.shape,
            outcomes=tuple(self.outcomes[key] for key in sorted(self.outcomes)),
            steps=tuple(records),
            contents={name: files.digest for name, files in self.contents.items()},
            resets=tuple(self.resets),
            events=events,
            wrong_reads=wrong_reads,
            stalled=self.stalled,
            engine_lost=self.lost,
            log_tail=self.engine.log_tail() if self.lost is not None else "",
        )

    def empty_first(self) -> None:
        """Where an engine drops all at once for want of room, what other runs left in it must not be what fills it."""
        resets = self.engine.capabilities[Capability.CACHE_RESET].present is True
        if resets and self.engine.shape.drops_all_below is not None:
            self.told(self.engine.reset_cache, False)

    def step(self, number: int, step: Step, first_request: int) -> StepRecord:
        """Run one step between two looks at the metrics."""
        before, started, error, silent = self.last_metrics, self.clock(), None, False
        moved: int | None = None
        self.queue: tuple[Queue, ...] = ()
        self.changed: tuple[float, float] | None = None
        try:
            match step:
                case SetAdapter():
                    self.set_adapter(step)
                case Unload(name=name):
                    self.unload(name)
                case Reset():
                    self.reset()
                case SaveState() | RestoreState():
                    moved = self.move_state(step)
                case Idle(ms=ms):
                    self.idle(ms)
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
            queue=self.queue,
            change_began=self.changed and self.changed[0],
            change_ended=self.changed and self.changed[1],
            moved_tokens=moved,
            error=error,
            silent=silent,
        )

    def burst(self, number: int, step: Burst, first_request: int) -> None:
        """Send all requests, make the change in their midst if one is asked for, await all."""
        change = self.change(step.meanwhile) if step.meanwhile else None
        planned = [self.plan(first_request + i, number, r) for i, r in enumerate(step.requests)]
        arrivals = [Arrival(self.wire(p, r), r.offset_ms) for p, r in zip(planned, step.requests, strict=True)]
        watch = Watch(
            step,
            self.engine,
            change=change,
            clock=self.clock,
            metrics=self.metrics,
            stall_seconds=self.stall_seconds,
        )
        served = self.engine.serve(arrivals, watch.on_token, watch.between)
        self.queue = tuple(watch.queue)
        if watch.stalled is not None:
            self.stalled = watch.stalled
            self.lost = f"nothing moved for {self.stall_seconds:.0f} s with requests in flight ({watch.stalled})"
        elif change is not None and not change.tried:
            change.try_it()  # the first request ended before it had that many tokens
        if change is not None and change.tried:
            self.changed = change.began, change.ended
        for plan, one in zip(planned, served, strict=True):
            outcome = self.widened(self.outcome(plan, one), change)
            self.outcomes[outcome.request] = outcome
            self.on_outcome(outcome)
        if change is not None and change.problem is not None:
            raise change.problem

    def change(self, meanwhile: Meanwhile) -> Change:
        """The change that a burst wants in its midst."""
        made = meanwhile.change
        return Change(
            meanwhile, lambda: self.reset() if isinstance(made, Reset) else self.set_adapter(made), self.clock
        )

    def widened(self, outcome: Outcome, change: Change | None) -> Outcome:
        """The outcome with every identity that a change in its midst allows it."""
        if change is None or not isinstance(change.change, SetAdapter):
            return outcome
        slot = self.slots.get(change.change.name)
        return change.widen(outcome, self.contents[change.change.content].digest, slot.load if slot else None)

    def plan(self, number: int, step: int, request: Request) -> Outcome:
        """The outcome before it happened: real prompt, model name and identity as of now."""
        slot = self.slots.get(request.adapter) if request.adapter else None
        salt = self.actual(request.salt) if request.salt is not None else None
        content = self.contents[slot.content].digest if slot else None
        if request.chat:
            self.chats[number] = messages_of(request, self.nonce, self.chats, self.outcomes)
        return Outcome(
            request=number,
            step=step,
            model=self.engine.base_model if request.adapter is None else self.actual(request.adapter),
            prompt=self.engine.render(self.chats[number])
            if request.chat
            else tokens_of(request, self.nonce, self.outcomes),
            max_tokens=request.max_tokens,
            surface=request.surface,
            identities=(Identity(content, salt),),
            residence=Residence(request.adapter, slot.load if slot else 0, salt),
            sent=0.0,
            finished=0.0,
        )

    def wire(self, plan: Outcome, request: Request) -> CompletionRequest:
        """The request as the adapter gets it."""
        return CompletionRequest(
            model=plan.model,
            prompt=plan.prompt,
            max_tokens=request.max_tokens,
            cache_salt=plan.residence.salt,
            priority=request.priority,
            messages=self.chats.get(plan.request),
            surface=self.with_scores(request.surface),
            abort=request.abort,
            tag=tag(self.nonce, plan.request) if self.tells_writers else "",
        )

    def with_scores(self, surface: Surface) -> Surface:
        """What is asked for and, where answers are judged by their scores, those of its tokens."""
        return surface.with_scores() if self.scored else surface

    def outcome(self, plan: Outcome, served: Served) -> Outcome:
        """What became of a plan; the wire's troubles become part of it."""
        times = {"sent": round(served.sent - self.began, 6), "finished": round(served.finished - self.began, 6)}
        answer = served.result
        if isinstance(answer, EngineError):
            silent = isinstance(answer, EngineSilent) or (self.stalled is not None and not is_refusal(answer))
            self.note_loss(answer)
            said = self.lost if self.stalled is not None and silent else str(answer)
            refused = is_refusal(answer)
            return msgspec.structs.replace(plan, **times, error=said, refused=refused, silent=silent)
        return msgspec.structs.replace(
            plan,
            **times,
            tokens=answer.tokens,
            text=answer.text,
            others=answer.others,
            prompt_logprobs=answer.prompt_logprobs,
            rendered=answer.prompt,
            finish_reason=answer.finish_reason,
            cached_tokens=answer.cached_tokens,
            cached_between=answer.cached_between,
            preemptions=answer.preemptions,
            preempted_at=answer.preempted_at,
            aborted=answer.aborted,
        )

    def reset(self) -> None:
        """Ask for an empty cache and note what the engine says. A refusal is an answer, not a failure."""
        began = self.clock()
        try:
            success = self.engine.reset_cache()
        except RequestRefused:
            success = False
        self.resets.append(ResetRecord(began=began, ended=self.clock(), success=success))

    def move_state(self, step: SaveState | RestoreState) -> int:
        """Save what is cached, or restore it. Raises RequestRefused where the engine cannot."""
        if not isinstance(self.engine, Saves):
            raise RequestRefused(501, self.engine.capabilities[Capability.SAVED_STATE].evidence)
        move = self.engine.save_state if isinstance(step, SaveState) else self.engine.restore_state
        return move(self.actual(step.name))

    def idle(self, ms: int) -> None:
        """Wait, then until the engine says that it holds nothing for anybody, or has had ample time to say so: not long
        where its own clock stands still meanwhile."""
        began = self.clock()
        time.sleep(ms / 1000)
        for _ in range(SETTLE_LOOKS):
            self.last_metrics = self.metrics()
            holds = self.last_metrics.running or self.last_metrics.waiting or self.last_metrics.pool_usage
            if not holds or self.clock() == began:
                return
            time.sleep(self.settle_seconds / SETTLE_LOOKS)

    def set_adapter(self, step: SetAdapter) -> None:
        """Write the files where the step wants them and tell the engine by the step's route."""
        files = self.contents[step.content]
        path = place(files, self.folder / f"{self.actual(step.path)}")
        name = self.actual(step.name)
        if step.route is Route.UNLOAD_LOAD and step.name in self.slots:
            self.unload(step.name)
        if step.route is Route.SWITCH:
            self.engine.switch_adapter(name, str(path))
        else:
            self.engine.load_adapter(name, str(path), in_place=step.route is Route.IN_PLACE and step.name in self.slots)
        self.loads += 1
        self.slots[step.name] = Slot(step.content, self.loads)

    def unload(self, name: str) -> None:
        """Unload a symbolic name."""
        self.engine.unload_adapter(self.actual(name))
        self.slots.pop(name, None)

    def actual(self, symbol: str) -> str:
        """The name on the wire."""
        return spelled(symbol, self.nonce)

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
        """The engine's counters since this run began."""
        return self.scrape().since(self.baseline)

    def scrape(self) -> Metrics:
        """The engine's counters, or unknowns once it is gone."""
        return self.told(self.engine.metrics, Metrics())

    def taken(self) -> Published:
        """What the engine has published since it was last asked, or nothing once it is gone."""
        return self.told(self.engine.take_events, Published())

    def told(self, ask: Callable[[], Told], nothing: Told) -> Told:
        """What the engine says, or nothing once it is gone."""
        if self.lost is not None:
            return nothing
        try:
            return ask()
        except EngineError as problem:
            self.note_loss(problem)
            return nothing

    def events(self) -> RunEvents | None:
        """What was published during this run. An engine that is lost has told only a part of it: then nothing."""
        if self.engine.capabilities[Capability.KV_EVENTS].present is not True:
            return None
        published = self.taken()
        if self.lost is not None:
            return None
        return self.ledger.record(published, self.outcomes.values(), began=self.began)

    def note_loss(self, problem: EngineError) -> None:
        """Remember that the engine is no longer usable: dead, or silent for longer than its patience."""
        if isinstance(problem, EngineDied | EngineSilent) and self.lost is None:
            self.lost = str(problem)

    def clock(self) -> float:
        """Seconds since the run began."""
        return round(self.engine.clock() - self.began, 6)


def is_refusal(problem: EngineError) -> bool:
    """Whether the engine said no to this one request."""
    return isinstance(problem, RequestRefused) and problem.status < 500
