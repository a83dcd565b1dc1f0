"""Transformers' continuous batching in this process, stepped by hand.

A burst is a loop over the engine's steps: each arrival, abort and change falls on the step that it is due at, a run
repeats exactly, and time is counted in steps. One PEFT adapter is on at a time, for all requests: those that name
another one wait until the engine is empty, as they would for a program that serves several adapters with it.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from adapters.base import (
    Arrival,
    Capability,
    Completion,
    CompletionRequest,
    EngineDied,
    EngineError,
    EngineShape,
    EngineSilent,
    Message,
    Metrics,
    RequestRefused,
    Served,
    Stage,
    Support,
)
from adapters.inproc_request import STEP_MS, seconds
from adapters.kv_events import Published
from adapters.process import TAIL_LINES
from adapters.provenance import WrongRead
from adapters.serving import served_alone
from adapters.transformers_adapters import PeftAdapters
from adapters.transformers_loop import Driver
from adapters.transformers_request import Live
from adapters.transformers_setup import Built, TransformersOptions, build, check_installed, close_log, version
from adapters.transformers_support import capabilities, shape

LEAVING_STEPS = 2  # an abort is fetched at the end of the next step and made in the one after it


def start(options: TransformersOptions) -> TransformersEngine:
    """Start an engine in this process: some seconds for the first, a moment for any other. Raises EngineStartError."""
    check_installed()
    driver = Driver()
    try:
        return TransformersEngine(options, driver, driver.do(lambda: build(options)))
    except BaseException:
        driver.end()
        raise


class TransformersEngine:
    """An engine that runs only while it is served from."""

    name = "transformers"
    base_model = "base"

    def __init__(self, options: TransformersOptions, driver: Driver, built: Built) -> None:
        self.options, self.driver, self.built = options, driver, built
        self.version: str | None = version()
        self.config: Mapping[str, str] = {
            "engine": "Transformers' continuous batching, stepped in this process",
            "model": options.model,
            "fields": options.words,
        }
        self.shape: EngineShape = shape(built)
        self.capabilities: Mapping[Capability, Support] = capabilities(built, version())
        self._adapters = PeftAdapters(built.model, self.base_model)
        self._death = ""  # why it is gone
        self._stopped = self._hangs = False
        self._steps = 0
        self._queue: deque[Live] = deque()
        self._live: dict[str, Live] = {}
        self._leaving: dict[str, int] = {}  # aborted requests that the engine may still have, and since when
        self._everywhere: str | None = None  # the name of what was switched on for all
        self._preemptions = 0
        self._numbers = itertools.count(1)
        self._turn = threading.RLock()

    def clock(self) -> float:
        """Steps so far, as seconds."""
        return seconds(self._steps)

    def complete(self, request: CompletionRequest) -> Completion:
        """One request; others may run beside it."""
        return served_alone(self.serve, request)

    def serve(
        self, arrivals: Sequence[Arrival], on_token: Callable[[int, int], None], between: Callable[[], None]
    ) -> list[Served]:
        """Step until all are over; `between` comes after each step. An offset is rounded up to a whole step.

        Several threads may do so: each step is everybody's.
        """
        began, mine, served = self._steps, dict[int, Live](), dict[int, Served]()
        waiting = dict(sorted(enumerate(arrivals), key=lambda item: item[1].offset_ms))
        try:
            while waiting or mine:
                try:
                    with self._turn:
                        self._must_live()
                        for number in [n for n in waiting if (self._steps - began) * STEP_MS >= waiting[n].offset_ms]:
                            self._send(number, waiting.pop(number).request, mine, served)
                        self._hang_up(mine)
                        self._step()
                        self._hang_up(mine)
                except (EngineDied, EngineSilent) as loss:
                    served |= {number: self._over(loss, mine.get(number)) for number in (*waiting, *mine)}
                    break
                for number, one in list(mine.items()):
                    if len(one.tokens) > one.told:
                        one.told = len(one.tokens)
                        on_token(number, one.told)
                    if one.ended is not None:
                        served[number] = self._over(one.result(self._text(one)), mine.pop(number))
                between()
        finally:
            self._abandon(mine)
        return [served[number] for number in range(len(arrivals))]

    def render(self, messages: tuple[Message, ...]) -> tuple[int, ...]:
        """What the tokenizer's chat template makes of messages. Raises RequestRefused where it makes nothing."""
        if self.built.tokenizer is None:
            raise RequestRefused(501, "the model has no tokenizer")
        said = [{"role": message.role, "content": message.content} for message in messages]
        try:
            ids = self.built.tokenizer.apply_chat_template(said, add_generation_prompt=True, return_dict=False)
        except (ValueError, TypeError) as problem:
            raise RequestRefused(400, str(problem)) from problem
        return tuple(ids)

    def load_adapter(self, name: str, path: str, *, in_place: bool) -> None:
        """Load or replace an adapter while the loop is paused: whoever runs under the name goes on with the new one."""
        with self._turn:
            self._must_live()
            self.driver.do(lambda: self._adapters.load(name, path, in_place=in_place))

    def switch_adapter(self, name: str, path: str) -> None:
        """Switch an adapter on while the loop is paused: whoever runs goes on under it, as with every `set_adapter`.

        Forgets the one that was switched on before.
        """
        with self._turn:
            before, self._everywhere = self._everywhere, None
            self.load_adapter(name, path, in_place=name in self._adapters.names)
            self.driver.do(lambda: self._adapters.switch(name))
            self._everywhere = name
            if before not in (None, name) and before in self._adapters.names:
                self.driver.do(lambda: self._adapters.unload(str(before)))

    def unload_adapter(self, name: str) -> None:
        """Forget a name and its weights. Raises RequestRefused while requests to it are there."""
        with self._turn:
            self._must_live()
            if any(one.request.model == name for one in (*self._queue, *self._live.values())):
                raise RequestRefused(409, f"requests to {name} are running")
            self.driver.do(lambda: self._adapters.unload(name))

    def reset_cache(self) -> bool:
        """Empty it, unless requests are there: the engine's own reset would take their blocks from them."""
        with self._turn:
            self._must_live()
            self._settle()
            return not self._live and self.driver.do(self.built.loop.empty)

    def metrics(self) -> Metrics:
        """Preemptions and gauges. The engine counts no hits."""
        with self._turn:
            self._must_live()
            loop = self.built.loop
            inside = [name for name, one in self._live.items() if one.inside]
            running = len(loop.watched.begun.intersection(inside))
            return Metrics(
                preemptions=self._preemptions,
                running=running,
                waiting=len(self._queue) + len(inside) - running,
                pool_usage=loop.usage(),
            )

    def take_events(self) -> Published:
        """Nothing is published."""
        return Published()

    def wrong_reads(self) -> tuple[WrongRead, ...]:
        """Nothing tells."""
        return ()

    def alive(self) -> bool:
        """Until it is stopped or its loop fails."""
        return not self._death

    def log_tail(self) -> str:
        """The end of what continuous batching logged for this engine."""
        try:
            text = self.options.log.read_text(errors="replace")
        except OSError as problem:
            return f"(log unreadable: {problem})"
        return "\n".join(text.splitlines()[-TAIL_LINES:])

    def stop(self) -> None:
        """End its threads. From within `between`, the burst ends with EngineDied. What hangs is left to itself."""
        with self._turn:
            if self._stopped:
                return
            self._stopped = True
            self._death = self._death or "the engine was stopped"
            self._queue.clear()
            self._live.clear()
            if not self._hangs:
                self.driver.do(self.built.loop.stop)
            self.driver.end()
            close_log(self.built.log)

    def _must_live(self) -> None:
        """Raises EngineDied when there is no engine any more."""
        if self._death:
            raise EngineDied(self._death)

    def _send(self, number: int, request: CompletionRequest, mine: dict[int, Live], served: dict[int, Served]) -> None:
        """Queue a request, or note why it is refused."""
        try:
            self._adapters.known(request.model)
            prompt = request.prompt if request.messages is None else self.render(request.messages)
        except RequestRefused as refusal:
            served[number] = self._over(refusal, None)
            return
        one = Live(request, prompt, name=f"{next(self._numbers):08d}", step=self._steps)
        mine[number] = self._live[one.name] = one
        self._queue.append(one)

    def _step(self) -> None:
        """Let in who may come in, and have the engine go on by a step, if it has work. Raises EngineDied or Silent."""
        try:
            self.driver.do(self._pass)
        except (EngineDied, EngineSilent) as loss:
            self._death, self._hangs = str(loss), isinstance(loss, EngineSilent)
            raise

    def _pass(self) -> None:
        """A step, in the driver's thread."""
        self._let_in()
        loop = self.built.loop
        if self._leaving or any(one.inside for one in self._live.values()):
            loop.step()
        self._steps += 1
        self._leaving = {n: s for n, s in self._leaving.items() if self._steps - s < LEAVING_STEPS}
        for output in loop.outputs():
            if output.request_id in self._live:
                self._live[output.request_id].take(output, self._steps)
        for one in list(self._live.values()):
            seen, before = loop.watched.preemptions(one.name), len(one.preempted_at)
            one.note(cached=loop.watched.hits.get(one.name, 0), preemptions=seen, step=self._steps)
            self._preemptions += seen - before
            if one.ended is not None:
                self._forget(one)

    def _let_in(self) -> None:
        """Give the engine who is next, as long as the adapter is the one that is on or nobody is in the engine."""
        while self._queue:
            one = self._queue[0]
            wanted = None if one.request.model == self.base_model else one.request.model
            if wanted is not None and wanted not in self._adapters.names:  # it was there when this was sent
                one.problem, one.ended = RequestRefused(404, f"no adapter is called {wanted} any more"), self._steps
                self._queue.popleft()
                continue
            if wanted != self._adapters.on:
                if self._leaving or any(other.inside for other in self._live.values()):
                    return
                self._adapters.switch(wanted)
            self._queue.popleft()
            one.inside = True
            self.built.loop.manager.add_request(
                list(one.prompt),
                request_id=one.name,
                max_new_tokens=one.request.max_tokens,
                streaming=True,
                eos_token_id=-1,  # no token is the end
            )

    def _hang_up(self, mine: dict[int, Live]) -> None:
        """Abort the requests whose clients hang up now."""
        for one in mine.values():
            if one.hangs_up(self._steps, functools.partial(self._stage, one)):
                one.aborted, one.ended = self._stage(one), self._steps
                self._abort(one)

    def _stage(self, one: Live) -> Stage:
        """Where the scheduler has it."""
        if one.tokens:
            return Stage.DECODE
        running = one.inside and one.name in self.built.loop.processor.scheduler.active_requests
        return Stage.PREFILL if running else Stage.QUEUED

    def _abort(self, one: Live) -> None:
        """Take a request out of the queue or the engine."""
        if one.inside:
            self.built.loop.manager.cancel_request(one.name)
            self._leaving[one.name] = self._steps
        else:
            self._queue.remove(one)
        self._forget(one)

    def _forget(self, one: Live) -> None:
        self.built.loop.watched.forget(one.name)
        self._live.pop(one.name, None)

    def _settle(self) -> None:
        """Step on until what was aborted has left the engine."""
        while self._leaving:
            self._step()

    def _abandon(self, mine: dict[int, Live]) -> None:
        """Leave no request behind when a burst ends early, such as by an exception out of `between`."""
        if self.alive():
            with self._turn:
                for one in mine.values():
                    if one.name in self._live:
                        self._abort(one)
                if not self._live:
                    self._settle()

    def _text(self, one: Live) -> str:
        """An answer as its client reads it."""
        if self.built.tokenizer is None:
            return ""
        return str(self.built.tokenizer.decode([token.id for token in one.tokens], skip_special_tokens=True))

    def _over(self, result: Completion | EngineError, one: Live | None) -> Served:
        """What became of a request, now or when it ended; one that was never queued was sent now."""
        sent = self._steps if one is None else one.step
        ended = self._steps if one is None or one.ended is None else one.ended
        return Served(seconds(sent), seconds(ended), result)
