"""OpenVINO GenAI's continuous batching in this process.

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
from typing import Any

from adapters.base import (
    Arrival,
    Capability,
    Completion,
    CompletionRequest,
    EngineDied,
    EngineError,
    EngineShape,
    Message,
    Metrics,
    RequestRefused,
    Served,
    Support,
    Token,
)
from adapters.kv_events import Published
from adapters.lora_files import content_digest
from adapters.openvino_request import ENDS, GIVEN_UP, STEP_MS, TOO_LARGE, Live, configuration, seconds, tensor
from adapters.openvino_setup import ABSENT, AT_START, Built, OpenVinoOptions, build, capabilities, package_version
from adapters.openvino_steps import Steps
from adapters.provenance import WrongRead

NO_TOKEN_STEPS = 1 << 30  # a budget that bounds nothing: whole prompts are computed at a time
BIND = "a name is bound to the registered adapter with these files"


def start(options: OpenVinoOptions) -> OpenVinoEngine:
    """Make a pipeline in this process, in a quarter of a second. Raises EngineStartError."""
    return OpenVinoEngine(options, build(options))


class OpenVinoEngine:
    """A pipeline that runs only while it is served from, one burst at a time."""

    name = "openvino"
    base_model = "base"

    def __init__(self, options: OpenVinoOptions, built: Built) -> None:
        self.options = options
        self.version: str | None = package_version()
        self.capabilities: Mapping[Capability, Support] = capabilities(built, self.version)
        self.config: Mapping[str, str] = {
            "engine": "OpenVINO GenAI's ContinuousBatchingPipeline in this process",
            "model": options.model,
            "arguments": shlex.join(options.arguments),
            "scheduler": " ".join(built.scheduler.to_string().split()),
            "properties": " ".join(f"{name}={value}" for name, value in sorted(built.properties.items())),
        }
        self.shape = EngineShape(
            block_size=built.block,
            pool_blocks=built.blocks,
            max_model_tokens=built.longest,
            adapter_slots=len(built.adapters) or None,
            prefix_caching=options.prefix_caching,
        )
        self._built: Built | None = built
        self._death = ""  # why it is gone
        self._steps_taken = 0
        self._steps = Steps(budget=built.budget or NO_TOKEN_STEPS, block=built.block)
        self._counted = built.budget is not None
        self._live: list[Live] = []
        self._leaving = False  # somebody hung up whose blocks the next step gives back
        self._numbers = itertools.count(1)
        self._registered = {content_digest(path): adapter for path, adapter in built.adapters.items()}
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
                        self._send(number, waiting.pop(number).request, live, served)
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
        built = self._running()
        try:
            self._adapter_of(request.model)
            handle = built.pipeline.add_request(
                next(self._numbers), tensor(built, request.prompt), configuration(built, request)
            )
        except RequestRefused as refusal:
            served[number] = self._over(refusal, None)
        except RuntimeError as problem:
            served[number] = self._over(RequestRefused(400, str(problem)), None)
        else:
            live[number] = Live(request, handle, step=self._steps_taken)
            self._live.append(live[number])

    def _step(self) -> None:
        """One step, and what it tells. Raises EngineDied when it fails."""
        built = self._running()
        try:
            if built.pipeline.has_non_finished_requests():
                built.pipeline.step()
        except RuntimeError as problem:
            raise self._failed(problem) from problem
        self._steps_taken += 1
        for one in self._live:
            one.read(self._steps_taken)
        usage = built.pipeline.get_metrics().cache_usage
        self._steps.note([one.progress for one in self._live], [one.count for one in self._live], usage=usage)
        if self._leaving or any(one.ended is not None for one in self._live):
            self._steps.gave_back()
        self._leaving = False
        self._live = [one for one in self._live if one.ended is None]

    def _hang_up(self, live: Mapping[int, Live]) -> None:
        """Cancel the requests whose clients hang up now."""
        for one in live.values():
            if one.hangs_up(self._steps_taken):
                one.aborted, one.ended = one.stage(), self._steps_taken
                self._cancel(one)

    def _cancel(self, one: Live) -> None:
        one.handle.cancel()
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
        """One `generate()` for each row of requests under one adapter, in the order of their arrival."""
        served: dict[int, Served] = {}
        order = sorted(range(len(arrivals)), key=lambda number: arrivals[number].offset_ms)
        for model, numbers in itertools.groupby(order, key=lambda number: arrivals[number].request.model):
            row, sent = list(numbers), self._steps_taken
            results = self._generate(model, [arrivals[number].request for number in row])
            for number, result in zip(row, results, strict=True):
                served[number] = Served(seconds(sent), self.clock(), result)
                if isinstance(result, Completion):
                    on_token(number, len(result.tokens))
            between()
        return [served[number] for number in range(len(arrivals))]

    def _generate(self, model: str, requests: Sequence[CompletionRequest]) -> list[Completion | EngineError]:
        """Requests under one adapter, side by side."""
        try:
            built, chosen = self._running(), self._adapter_of(model)
            configurations = [configuration(built, request) for request in requests]
            for made in configurations:
                adapter = () if chosen is None else (self._registered[chosen],)
                made.adapters = built.genai.AdapterConfig(*adapter)
            answers = built.pipeline.generate([tensor(built, one.prompt) for one in requests], configurations)
        except EngineError as problem:
            return [problem] * len(requests)
        except RuntimeError as problem:
            return [self._failed(problem)] * len(requests)
        self._steps_taken += max(one.max_tokens for one in requests)
        return [answered(answer) for answer in answers]

    def _adapter_of(self, model: str) -> str | None:
        """The content behind a served name; None for the base model. Raises RequestRefused for another name."""
        if model != self.base_model and model not in self._bound:
            raise RequestRefused(404, f"no adapter is called {model}")
        return self._bound.get(model)

    def _running(self) -> Built:
        """Raises EngineDied when there is no engine any more."""
        if self._built is None or self._death:
            raise EngineDied(self._death)
        return self._built

    def _failed(self, problem: RuntimeError) -> EngineDied:
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
        digest = content_digest(Path(path))
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
            built = self._running()
            if not self._live:
                self._settle(built)
            told = built.pipeline.get_metrics()
            running = min(told.scheduled_requests, len(self._live))
            return Metrics(
                preemptions=self._steps.preemptions,
                running=running,
                waiting=len(self._live) - running,
                pool_usage=told.cache_usage / 100,
            )

    def _settle(self, built: Built) -> None:
        """Let go of who hung up, and have the gauges taken without requests. Raises EngineDied."""
        try:
            if built.pipeline.has_non_finished_requests():
                built.pipeline.step()
            built.pipeline.step()
        except RuntimeError as problem:
            raise self._failed(problem) from problem
        self._leaving = False

    def take_events(self) -> Published:
        """Nothing is published."""
        return Published()

    def wrong_reads(self) -> tuple[WrongRead, ...]:
        """Nothing tells."""
        return ()

    def alive(self) -> bool:
        """Until it is stopped or a step fails."""
        return self._built is not None and not self._death

    def log_tail(self) -> str:
        """Why it is gone: the engine writes no log."""
        return self._death

    def stop(self) -> None:
        """Let go of it. From within `between`, the burst ends with EngineDied."""
        self._death = self._death or "the engine was stopped"
        self._live.clear()
        self._built = None


def answered(answer: Any) -> Completion | EngineError:
    """One answer of a `generate()`."""
    if not answer.m_generation_ids:
        return RequestRefused(TOO_LARGE, GIVEN_UP)
    (ids,) = answer.m_generation_ids
    reason = ENDS.get(answer.finish_reasons[0].name)
    return Completion(tokens=tuple(Token(id=token, at=0.0) for token in ids), finish_reason=reason, cached_tokens=None)
