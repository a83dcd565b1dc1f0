"""OpenVINO GenAI's continuous batching, in a process of its own that does nothing but what it is told.

Without adapters the caller drives it: a burst is a loop over `step()`, in which arrivals and aborts fall on the steps
that they are due at, and a run repeats exactly. With adapters each request goes through `generate()`, for that is where
one is chosen: requests of one adapter that stand behind one another run together, others wait for them. Time is counted
in steps; no wall clock reaches what is returned.
"""

from __future__ import annotations

import itertools
import shlex
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

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
    Support,
    Token,
)
from adapters.kv_events import Published
from adapters.lora_files import content_digest
from adapters.openvino_remote import Refused, Remote
from adapters.openvino_request import ENDS, GIVEN_UP, STEP_MS, TOO_LARGE, Live, seconds
from adapters.openvino_setup import ABSENT, AT_START, CPU_BLOCK, OpenVinoOptions, Output, Stepped, capabilities
from adapters.openvino_steps import Steps
from adapters.process import EngineProcess
from adapters.provenance import WrongRead

NO_TOKEN_STEPS = 1 << 30  # a budget that bounds nothing: whole prompts are computed at a time
Told = TypeVar("Told")
BIND = "a name is bound to the registered adapter with these files"


def spawn(options: OpenVinoOptions, *, on_process: Callable[[EngineProcess], None]) -> OpenVinoEngine:
    """Start a worker and have it make a pipeline, in a second. Raises EngineStartError."""
    remote = Remote(options, on_process)
    try:
        return OpenVinoEngine(options, remote)
    except BaseException:
        remote.stop()
        raise


class OpenVinoEngine:
    """A pipeline that runs only while it is served from, one burst at a time."""

    name = "openvino"
    base_model = "base"

    def __init__(self, options: OpenVinoOptions, remote: Remote) -> None:
        self.options, self.remote, facts = options, remote, remote.facts
        self.version: str | None = facts.version
        self.capabilities: Mapping[Capability, Support] = capabilities(facts, stepped=not options.adapters)
        self.config: Mapping[str, str] = {
            "engine": "OpenVINO GenAI's ContinuousBatchingPipeline, stepped by its caller",
            "model": options.model,
            "arguments": shlex.join(options.arguments),
            "scheduler": facts.scheduler,
            "properties": facts.properties,
        }
        self.shape = EngineShape(
            block_size=CPU_BLOCK,
            pool_blocks=facts.blocks,
            max_model_tokens=facts.longest,
            adapter_slots=len(options.adapters) or None,
            prefix_caching=options.prefix_caching,
        )
        self._death = ""  # why it is gone
        self._steps_taken = 0
        self._steps = Steps(budget=facts.budget or NO_TOKEN_STEPS, block=CPU_BLOCK)
        self._counted = facts.budget is not None
        self._live: list[Live] = []
        self._latest = Stepped(outputs=[], ended={}, usage=0.0, scheduled=0, waiting=False)
        self._leaving = False  # somebody hung up whose blocks the next step gives back
        self._numbers = itertools.count(1)
        self._registered = {content_digest(path): number for number, path in enumerate(options.adapters)}
        self._bound: dict[str, str] = {}  # name -> digest
        self._turn = threading.RLock()

    def clock(self) -> float:
        """Steps so far, as seconds."""
        return seconds(self._steps_taken)

    def complete(self, request: CompletionRequest) -> Completion:
        """One request, alone."""
        (served,) = self.serve([Arrival(request)], lambda _number, _count: None, lambda: None)
        if isinstance(served.result, EngineError):
            raise served.result
        return served.result

    def serve(
        self, arrivals: Sequence[Arrival], on_token: Callable[[int, int], None], between: Callable[[], None]
    ) -> list[Served]:
        """Step until all are over, or have `generate()` do so."""
        with self._turn:
            route = self._generate_all if self._registered else self._step_all
            return route(arrivals, on_token, between)

    def _step_all(
        self, arrivals: Sequence[Arrival], on_token: Callable[[int, int], None], between: Callable[[], None]
    ) -> list[Served]:
        """`between` comes after each step. An offset is rounded up to a whole step."""
        began, live, served = self._steps_taken, dict[int, Live](), dict[int, Served]()
        waiting = dict(sorted(enumerate(arrivals), key=lambda item: item[1].offset_ms))
        try:
            while waiting or live:
                due = [n for n in waiting if (self._steps_taken - began) * STEP_MS >= waiting[n].offset_ms]
                try:
                    self._running()
                    for number in due:
                        self._send(number, waiting[number].request, live, served)
                        del waiting[number]
                    self._hang_up(live)
                    self._step()
                    self._hang_up(live)
                except EngineDied as death:
                    served |= {number: self._over(death, live.get(number)) for number in (*waiting, *live)}
                    break
                for number, one in list(live.items()):
                    if one.count > one.told:
                        one.told = one.count
                        on_token(number, one.count)
                    if one.ended is not None:
                        served[number] = self._over(one.result(counted=self._counted), live.pop(number))
                between()
        finally:
            self._abandon()
        return [served[number] for number in range(len(arrivals))]

    def _send(self, number: int, request: CompletionRequest, live: dict[int, Live], served: dict[int, Served]) -> None:
        """Add a request, or note why it is refused."""
        surface, name = request.surface, next(self._numbers)
        try:
            self._adapter_of(request.model)
            wanted = (list(request.prompt), request.max_tokens, surface.logprobs, surface.prompt_logprobs)
            self._call(type(None), "add", name, *wanted)
        except RequestRefused as refusal:
            served[number] = self._over(refusal, None)
        except Refused as problem:
            served[number] = self._over(RequestRefused(400, str(problem)), None)
        else:
            live[number] = Live(request, name, step=self._steps_taken)
            self._live.append(live[number])

    def _step(self) -> None:
        """One step, and what it tells. Raises EngineDied when it fails."""
        self._running()
        self._steps_taken += 1
        if not self._live and not self._latest.waiting:
            return  # nobody is there: only time goes on
        self._latest = told = self._planned()
        known = {one.number: one for one in self._live}
        for output in told.outputs:
            known[output.number].take(output, self._steps_taken)
        for number, status in told.ended.items():
            known[number].end(status, self._steps_taken)
        self._steps.note([one.progress for one in self._live], [one.count for one in self._live], usage=told.usage)
        if self._leaving or told.ended:
            self._steps.gave_back()
        self._leaving = False
        self._live = [one for one in self._live if one.ended is None]

    def _planned(self) -> Stepped:
        """A step of the engine's."""
        try:
            return self._call(Stepped, "step")
        except Refused as problem:
            raise self._failed(problem) from problem

    def _hang_up(self, live: Mapping[int, Live]) -> None:
        """Cancel the requests whose clients hang up now."""
        for one in live.values():
            if one.hangs_up(self._steps_taken):
                one.aborted, one.ended = one.stage(), self._steps_taken
                self._cancel(one)

    def _cancel(self, one: Live) -> None:
        self._call(type(None), "cancel", one.number)
        self._live.remove(one)
        self._leaving = True
        self._steps.gave_back()

    def _abandon(self) -> None:
        """Leave no request behind when a burst ends early, such as by an exception out of `between`."""
        if self.alive() and self._live:
            for one in list(self._live):
                self._cancel(one)
            self._step()

    def _generate_all(
        self, arrivals: Sequence[Arrival], on_token: Callable[[int, int], None], between: Callable[[], None]
    ) -> list[Served]:
        """One `generate()` for each row of requests under one adapter that have come by then, in their order."""
        served: dict[int, Served] = {}
        began, waiting = self._steps_taken, sorted(range(len(arrivals)), key=lambda n: arrivals[n].offset_ms)
        while waiting:
            first = arrivals[waiting[0]]
            self._steps_taken = max(self._steps_taken, began + -(-first.offset_ms // STEP_MS))
            row = first_row(arrivals, waiting, (self._steps_taken - began) * STEP_MS)
            sent, waiting = self._steps_taken, waiting[len(row) :]
            results = self._generate(first.request.model, [arrivals[number].request for number in row])
            for number, result in zip(row, results, strict=True):
                served[number] = Served(seconds(sent), self.clock(), result)
                if isinstance(result, Completion):
                    on_token(number, len(result.tokens))
            between()
        return [served[number] for number in range(len(arrivals))]

    def _generate(self, model: str, requests: Sequence[CompletionRequest]) -> list[Completion | EngineError]:
        """Requests under one adapter, side by side."""
        try:
            chosen = self._adapter_of(model)
            prompts, counts = [list(one.prompt) for one in requests], [one.max_tokens for one in requests]
            number = None if chosen is None else self._registered[chosen]
            answers = self._call(list[Output], "generate", number, prompts, counts)
        except EngineError as problem:
            return [problem] * len(requests)
        except Refused as problem:
            return [self._failed(problem)] * len(requests)
        self._steps_taken += max(counts)
        return [answered(answer) for answer in answers]

    def _adapter_of(self, model: str) -> str | None:
        """The content behind a served name; None for the base model. Raises RequestRefused for another name."""
        if model != self.base_model and model not in self._bound:
            raise RequestRefused(404, f"no adapter is called {model}")
        return self._bound.get(model)

    def _call(self, returns: type[Told], name: str, *arguments: Any) -> Told:
        """A method of the worker; whoever is gone or silent then is gone for good."""
        self._running()
        try:
            return self.remote.call(returns, name, *arguments)
        except (EngineDied, EngineSilent) as problem:
            self._death = str(problem)
            raise

    def _running(self) -> None:
        """Raises EngineDied when there is no engine any more."""
        if self._death:
            raise EngineDied(self._death)

    def _failed(self, problem: Refused) -> EngineDied:
        """After a failed step nobody knows what state the pipeline is in."""
        self._death = f"a step of the engine failed: {problem}"
        return EngineDied(self._death)

    def _over(self, result: Completion | EngineError, one: Live | None) -> Served:
        """What became of a request, now or when it ended; one that never came to the engine was sent now."""
        sent = self._steps_taken if one is None else one.step
        ended = self._steps_taken if one is None or one.ended is None else one.ended
        return Served(seconds(sent), seconds(ended), result)

    def render(self, messages: tuple[Message, ...]) -> tuple[int, ...]:
        """There is no chat. Raises RequestRefused."""
        raise RequestRefused(501, f"{len(messages)} messages: {ABSENT[Capability.CHAT]}")

    def load_adapter(self, name: str, path: str, *, in_place: bool) -> None:
        """Bind a name to the registered adapter with these files. Raises RequestRefused where there is none."""
        try:
            digest = content_digest(Path(path))
        except OSError as problem:
            raise RequestRefused(404, f"{path} holds no adapter: {problem}") from problem
        if digest not in self._registered:
            raise RequestRefused(404, f"the adapter files in {path} are not registered: {AT_START}")
        if in_place or name in self._bound:
            raise RequestRefused(400, f"{name}: {BIND}, and cannot be replaced")
        self._bound[name] = digest

    def switch_adapter(self, name: str, path: str) -> None:
        """There is no such switch. Raises RequestRefused."""
        raise RequestRefused(501, f"{name}, {path}: {ABSENT[Capability.ADAPTER_SWITCH]}")

    def unload_adapter(self, name: str) -> None:
        """Forget a name."""
        if self._bound.pop(name, None) is None:
            raise RequestRefused(404, f"no adapter is called {name}")

    def reset_cache(self) -> bool:
        """There is no reset. Raises RequestRefused."""
        raise RequestRefused(501, ABSENT[Capability.CACHE_RESET])

    def metrics(self) -> Metrics:
        """The engine's gauges as of the latest step: who was given tokens in it runs, others wait."""
        with self._turn:
            if self._registered:
                return Metrics()
            self._running()
            if not self._live:
                self._settle()
            running = min(self._latest.scheduled, len(self._live))
            return Metrics(
                preemptions=self._steps.preemptions,
                running=running,
                waiting=len(self._live) - running,
                pool_usage=self._latest.usage / 100,
            )

    def _settle(self) -> None:
        """Let go of who hung up, and have the gauges taken without requests."""
        if self._latest.waiting or self._leaving:
            self._planned()
        self._latest, self._leaving = self._planned(), False

    def take_events(self) -> Published:
        """Nothing is published."""
        return Published()

    def wrong_reads(self) -> tuple[WrongRead, ...]:
        """Nothing tells."""
        return ()

    def alive(self) -> bool:
        """Until it is stopped or a step fails."""
        return not self._death and self.remote.process.running()

    def log_tail(self) -> str:
        """The end of what it wrote."""
        return self.remote.process.tail()

    def stop(self) -> None:
        """End it. From within `between`, the burst ends with EngineDied."""
        self._death = self._death or "the engine was stopped"
        self._live.clear()
        self.remote.stop()


def first_row(arrivals: Sequence[Arrival], waiting: Sequence[int], come: int) -> list[int]:
    """Of those who wait, in their order: as many from the first on as have come and ask the same model."""
    row: list[int] = []
    for number in waiting:
        if arrivals[number].offset_ms > come or arrivals[number].request.model != arrivals[waiting[0]].request.model:
            break
        row.append(number)
    return row


def answered(answer: Output) -> Completion | EngineError:
    """One answer of a `generate()`."""
    if not answer.ids:  # the engine says nothing of why
        return RequestRefused(TOO_LARGE, GIVEN_UP)
    tokens = tuple(Token(id=token, at=0.0) for token in answer.ids)
    return Completion(tokens=tokens, finish_reason=ENDS.get(answer.reason), cached_tokens=None)
