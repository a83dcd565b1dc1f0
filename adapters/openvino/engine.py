"""OpenVINO GenAI's continuous batching, in a worker process that only executes the commands of its client.

Without adapters, a burst is a loop over `step()`: each arrival and each abort happens at its step, so a run repeats
exactly. With adapters, requests go through `generate()`, because only it can select an adapter: consecutive requests of
one adapter run together, the others wait. Time is counted in steps; no result depends on the wall clock.
"""

from __future__ import annotations

import itertools
import shlex
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from coldproof.adapters.common.absent_features import AbsentFeatures
from coldproof.adapters.common.lora_digest import content_digest
from coldproof.adapters.common.registered_adapters import RegisteredAdapters
from coldproof.adapters.common.stepping import STEP_MS, SteppedEngine, seconds
from coldproof.adapters.openvino.content import tensors_of
from coldproof.adapters.openvino.request import OpenVinoRequest, completion_of, first_batch
from coldproof.adapters.openvino.setup import CPU_BLOCK, Output, StepResult, capabilities, registered
from coldproof.adapters.openvino.step_counts import StepAccounting
from coldproof.adapters.openvino.vision_ir import POSITIONS_OF_IMAGE, SIDE, text_of_images
from coldproof.adapters.openvino.worker_client import EngineRefusal, WorkerClient
from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.engine import EngineDied, EngineError, EngineSilent, RequestRefused, Served
from coldproof.adapters.protocol.metrics import Metrics
from coldproof.adapters.protocol.requests import Arrival, Completion, CompletionRequest
from coldproof.adapters.protocol.shape import EngineShape, ImageShape
from coldproof.adapters.spec.engine_spec import StartOptions

NO_TOKEN_STEPS = 1 << 30  # a budget without effect: whole prompts are computed in one step
Reply = TypeVar("Reply")


def start(options: StartOptions) -> OpenVinoEngine:
    """Start a worker and create its pipeline, in about a second. Raises EngineStartError."""
    client = WorkerClient(options)
    try:
        return OpenVinoEngine(options, client)
    except BaseException:
        client.stop()
        raise


class OpenVinoEngine(AbsentFeatures, SteppedEngine[OpenVinoRequest]):
    """The adapter of a pipeline. The pipeline runs only inside `serve`, one burst at a time."""

    name = "openvino"
    base_model = "base"

    def __init__(self, options: StartOptions, client: WorkerClient) -> None:
        self.client, facts, adapters = client, client.facts, registered(options)
        self.version: str | None = facts.version
        self.capabilities = capabilities(facts, stepped=not adapters)
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
            adapter_slots=len(adapters) or None,
            prefix_caching=options.caching,
            image=ImageShape(SIDE, POSITIONS_OF_IMAGE) if facts.seeing else None,
        )
        self._failure = ""  # why the engine has terminated
        self.steps = 0
        self._step_counts = StepAccounting(budget=facts.budget or NO_TOKEN_STEPS, block=CPU_BLOCK)
        self._counted = facts.budget is not None
        self._live: list[OpenVinoRequest] = []
        self._latest = StepResult(outputs=[], ended={}, usage=0.0, scheduled=0, waiting=False)
        self._cancelled = False  # a request was cancelled, and the next step frees its blocks
        self._numbers = itertools.count(1)
        self._adapters = RegisteredAdapters([content_digest(path) for path in adapters])
        self._lock = threading.RLock()

    def serve(
        self, arrivals: Sequence[Arrival], on_token: Callable[[int, int], None], between: Callable[[], None]
    ) -> list[Served]:
        """Serve all requests by steps or, with registered adapters, by `generate()`."""
        with self._lock:
            if self._adapters.numbers:
                return self._generate_all(arrivals, on_token, between)
            return super().serve(arrivals, on_token, between)

    def send(self, request: CompletionRequest) -> OpenVinoRequest:
        """Add a request. Raises RequestRefused if the engine does not accept it."""
        response_options, name = request.options, next(self._numbers)
        self._adapter_of(request.model)
        try:
            if (image := self.shape.image) is not None:
                content = (text_of_images(request.prompt), list(tensors_of(request, image.side)))
                self._call(type(None), "add_text", name, *content, request.max_tokens, response_options.logprobs)
            else:
                wanted = (
                    list(request.prompt),
                    request.max_tokens,
                    response_options.logprobs,
                    response_options.prompt_logprobs,
                )
                self._call(type(None), "add", name, *wanted)
        except EngineRefusal as problem:
            raise RequestRefused(400, str(problem)) from problem
        one = OpenVinoRequest(request, name, step=self.steps)
        self._live.append(one)
        return one

    def step(self) -> None:
        """Execute one step and record its results. Raises EngineDied if it fails."""
        self.steps += 1
        if not self._live and not self._latest.waiting:
            return  # there are no requests: only the time advances
        self._latest = result = self._execute_step()
        known = {one.number: one for one in self._live}
        for output in result.outputs:
            known[output.number].take(output, self.steps)
        for number, status in result.ended.items():
            known[number].end(status, self.steps)
        self._step_counts.note(
            [one.progress for one in self._live], [one.count for one in self._live], usage=result.usage
        )
        if self._cancelled or result.ended:
            self._step_counts.gave_back()
        self._cancelled = False
        self._live = [one for one in self._live if one.ended is None]

    def _execute_step(self) -> StepResult:
        """Execute one step of the pipeline. Raises EngineDied."""
        try:
            return self._call(StepResult, "step")
        except EngineRefusal as problem:
            raise self._failed(problem) from problem

    def disconnect(self, one: OpenVinoRequest) -> None:
        """Cancel a request. The next step frees its blocks."""
        self._call(type(None), "cancel", one.number)
        self._live.remove(one)
        self._cancelled = True
        self._step_counts.gave_back()

    def finished(self, one: OpenVinoRequest) -> Completion | EngineError:
        """Return the result of a request."""
        return one.result(counted=self._counted)

    def close_burst(self, left: Sequence[OpenVinoRequest]) -> None:
        """Cancel the requests that are left, and step once so that the engine frees them."""
        for one in left:
            self.disconnect(one)
        if left:
            self.step()

    def _generate_all(
        self, arrivals: Sequence[Arrival], on_token: Callable[[int, int], None], between: Callable[[], None]
    ) -> list[Served]:
        """Serve requests in order: one `generate()` for each run of arrived requests with the same adapter."""
        served: dict[int, Served] = {}
        began, waiting = self.steps, sorted(range(len(arrivals)), key=lambda n: arrivals[n].offset_ms)
        while waiting:
            first = arrivals[waiting[0]]
            self.steps = max(self.steps, began + -(-first.offset_ms // STEP_MS))
            batch = first_batch(arrivals, waiting, (self.steps - began) * STEP_MS)
            sent, waiting = self.steps, waiting[len(batch) :]
            results = self._generate(first.request.model, [arrivals[number].request for number in batch])
            for number, result in zip(batch, results, strict=True):
                served[number] = Served(seconds(sent), self.clock(), result)
                if isinstance(result, Completion):
                    on_token(number, len(result.tokens))
            between()
        return [served[number] for number in range(len(arrivals))]

    def _generate(self, model: str, requests: Sequence[CompletionRequest]) -> list[Completion | EngineError]:
        """Serve requests of one adapter together."""
        try:
            prompts, counts = [list(one.prompt) for one in requests], [one.max_tokens for one in requests]
            answers = self._call(list[Output], "generate", self._adapter_of(model), prompts, counts)
        except EngineError as problem:
            return [problem] * len(requests)
        except EngineRefusal as problem:
            return [self._failed(problem)] * len(requests)
        self.steps += max(counts)
        return [completion_of(answer) for answer in answers]

    def _adapter_of(self, model: str) -> int | None:
        """Return the number of a served name's adapter; None for the base model. Raises RequestRefused if unknown."""
        return None if model == self.base_model else self._adapters.bound_to(model)

    def _call(self, returns: type[Reply], name: str, *arguments: Any) -> Reply:
        """Call a method of the worker. After EngineDied or EngineSilent, the engine is not used again."""
        with self.entered():
            try:
                return self.client.call(returns, name, *arguments)
            except (EngineDied, EngineSilent) as problem:
                self._failure = str(problem)
                raise

    def _failed(self, problem: EngineRefusal) -> EngineDied:
        """Mark the engine as terminated, because a failed step leaves an unknown state. Return the error to raise."""
        self._failure = f"a step of the engine failed: {problem}"
        return EngineDied(self._failure)

    def load_adapter(self, name: str, path: str, *, in_place: bool) -> None:
        """Bind a name to the registered adapter with these files. Raises RequestRefused if there is none."""
        self._adapters.bind(name, path, in_place=in_place)

    def unload_adapter(self, name: str) -> None:
        """Remove the binding of a name. Raises RequestRefused for an unknown name."""
        self._adapters.unbind(name)

    def metrics(self) -> Metrics:
        """Return the engine's gauges after the latest step. Requests that were scheduled in it count as running."""
        if self._adapters.numbers:
            return Metrics()
        with self.entered():
            if not self._live:
                self._settle()
            running = min(self._latest.scheduled, len(self._live))
            counted = self.capabilities[Capability.PREEMPTION_COUNTS].present
            return Metrics(
                preemptions=self._step_counts.preemptions if counted else None,
                running=running,
                waiting=len(self._live) - running,
                pool_usage=self._latest.usage / 100,
            )

    def _settle(self) -> None:
        """Free cancelled requests, and update the gauges while there are no requests."""
        if self._latest.waiting or self._cancelled:
            self._execute_step()
        self._latest, self._cancelled = self._execute_step(), False

    def alive(self) -> bool:
        """Return whether the engine can serve: it has not been stopped, no step has failed, and its process runs."""
        return not self._failure and self.client.process.running()

    def log_tail(self) -> str:
        """Return the end of the worker's log."""
        return self.client.process.tail()

    def stop(self) -> None:
        """Stop the worker. A call from `between` ends the burst with EngineDied."""
        self._failure = self._failure or "the engine was stopped"
        self._live.clear()
        self.client.stop()
