"""Transformers' continuous batching in this process, stepped by Coldproof.

A burst is a loop over the engine's steps: each arrival, abort and adapter change happens at its step, a run repeats
exactly, and time is counted in steps. One PEFT adapter is active at a time, for all requests. Requests of other
adapters wait until the engine is empty, as in any program that serves several adapters with Transformers.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections import deque
from collections.abc import Mapping, Sequence

from coldproof.adapters.common.absent_features import AbsentFeatures
from coldproof.adapters.common.process import log_tail
from coldproof.adapters.common.stepping import SteppedEngine
from coldproof.adapters.protocol.engine import EngineDied, EngineError, EngineSilent, RequestRefused
from coldproof.adapters.protocol.engine_steps import EngineStep
from coldproof.adapters.protocol.metrics import Metrics
from coldproof.adapters.protocol.requests import Completion, CompletionRequest, Message, Stage
from coldproof.adapters.protocol.weights import WeightRoute
from coldproof.adapters.spec.engine_spec import StartOptions
from coldproof.adapters.transformers.loop import CAPTURES, OPEN, Driver
from coldproof.adapters.transformers.lora import PeftAdapters
from coldproof.adapters.transformers.request import CHILD, TransformersRequest
from coldproof.adapters.transformers.scoring import score
from coldproof.adapters.transformers.setup import (
    PipelineParts,
    build,
    capabilities,
    check_installed,
    fields,
    shape,
    version,
)
from coldproof.adapters.transformers.weights import checksum, load_weights

CANCEL_STEPS = 2  # the engine reads an abort at the end of the next step, and executes it in the step after that


def start(options: StartOptions) -> TransformersEngine:
    """Start an engine in this process. The first one takes some seconds. Raises EngineStartError."""
    check_installed()
    driver = Driver(gate=CAPTURES if fields(options)["use_cuda_graph"] else OPEN)
    try:
        return TransformersEngine(options, driver, driver.do(lambda: build(options)))
    except BaseException:
        driver.end()
        raise


class TransformersEngine(AbsentFeatures, SteppedEngine[TransformersRequest]):
    """The adapter of an in-process engine. It runs only inside `serve`. Several threads may serve and share steps."""

    name = "transformers"
    base_model = "base"

    def __init__(self, options: StartOptions, driver: Driver, parts: PipelineParts) -> None:
        self.options, self.driver, self.parts = options, driver, parts
        self.version: str | None = version()
        self.config: Mapping[str, str] = {
            "engine": "Transformers' continuous batching, stepped in this process",
            "model": options.model,
            "fields": json.dumps(fields(options)),
        }
        self.shape = shape(parts)
        self._recorder = parts.loop.hooks.steps
        self._recorder.pool_blocks = self.shape.pool_blocks
        self.capabilities = capabilities(parts)
        self._adapters = PeftAdapters(parts.model, self.base_model)
        self._failure = ""  # why the engine has terminated
        self._stopped = self._silent = False
        self.steps = 0
        self._queue: deque[TransformersRequest] = deque()
        self._live: dict[str, TransformersRequest] = {}
        self._cancelled: dict[str, int] = {}  # aborted requests that the engine may still have -> step of the abort
        self._switched_on: str | None = None  # the adapter that `switch_adapter` activated
        self._preemptions = 0
        self._numbers = itertools.count(1)
        self._lock = threading.RLock()

    def render(self, messages: tuple[Message, ...]) -> tuple[int, ...]:
        """Return the token ids of a chat, from the tokenizer's chat template. Raises RequestRefused."""
        if self.parts.tokenizer is None:
            raise RequestRefused(501, "the model has no tokenizer")
        chat = [{"role": message.role, "content": message.content} for message in messages]
        try:
            ids = self.parts.tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        except (ValueError, TypeError) as problem:
            raise RequestRefused(400, str(problem)) from problem
        return tuple(ids)

    def score(self, request: CompletionRequest) -> Completion:
        """Score a prompt with the model alone. Raises RequestRefused while requests run."""
        with self.entered():
            self._settle()
            if self._queue or self._live:
                raise RequestRefused(409, "requests are running")
            return self.driver.do(lambda: self._scored(request))

    def _scored(self, request: CompletionRequest) -> Completion:
        """Activate the adapter and score. Runs in the driver's thread."""
        self._adapters.switch(self._adapters.known(request.model))
        return score(self.parts.model, request)

    def load_adapter(self, name: str, path: str, *, in_place: bool) -> None:
        """Load or replace an adapter while the loop is paused. Running requests of that name then use the new one."""
        with self.entered():
            self.driver.do(lambda: self._adapters.load(name, path, in_place=in_place))

    def switch_adapter(self, name: str, path: str) -> None:
        """Activate an adapter while the loop is paused. Running requests continue with it, as with any `set_adapter`.

        The adapter that was switched on before is unloaded.
        """
        with self._lock:
            before, self._switched_on = self._switched_on, None
            self.load_adapter(name, path, in_place=name in self._adapters.names)
            self.driver.do(lambda: self._adapters.switch(name))
            self._switched_on = name
            if before not in (None, name) and before in self._adapters.names:
                self.driver.do(lambda: self._adapters.unload(str(before)))

    def unload_adapter(self, name: str) -> None:
        """Unload an adapter. Raises RequestRefused while it has requests."""
        with self.entered():
            if any(one.request.model == name for one in (*self._queue, *self._live.values())):
                raise RequestRefused(409, f"requests to {name} are running")
            self.driver.do(lambda: self._adapters.unload(name))

    def update_weights(self, path: str, _route: WeightRoute) -> None:
        """Copy other weights into the model while the loop is paused. Running requests continue with them."""
        with self.entered():
            self.driver.do(lambda: load_weights(self.parts.model, path))

    def weights_checksum(self) -> str | None:
        """Return a digest of the model's parameters."""
        with self.entered():
            return self.driver.do(lambda: checksum(self.parts.model))

    def reset_cache(self) -> bool:
        """Empty the prefix cache. Return False while there are requests, whose blocks the engine's reset would free."""
        with self.entered():
            self._settle()
            return not self._live and self.driver.do(self.parts.loop.empty_cache)

    def metrics(self) -> Metrics:
        """Return preemptions and gauges. The engine does not count hits."""
        with self.entered():
            loop = self.parts.loop
            inside = [name for name, one in self._live.items() if one.inside]
            running = len(loop.hooks.started.intersection(inside))
            return Metrics(
                preemptions=self._preemptions,
                running=running,
                waiting=len(self._queue) + len(inside) - running,
                pool_usage=loop.usage(),
            )

    def take_steps(self) -> tuple[EngineStep, ...] | None:
        """Return and remove the recorded steps of the scheduler; None without a cache."""
        return self._recorder.take() if self.options.caching else None

    def alive(self) -> bool:
        """Return whether the engine can serve: it has not been stopped, and its loop has not failed."""
        return not self._failure

    def log_tail(self) -> str:
        """Return the end of the log of this engine."""
        return log_tail(self.options.log)

    def stop(self) -> None:
        """Stop the engine's threads. From `between`, it ends the burst with EngineDied. A silent loop is not joined."""
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
            self._failure = self._failure or "the engine was stopped"
            self._queue.clear()
            self._live.clear()
            if not self._silent:
                self.driver.do(self.parts.loop.stop)
            self.driver.end()
            self.parts.log.close()

    def send(self, request: CompletionRequest) -> TransformersRequest:
        """Queue a request. Raises RequestRefused if the engine does not accept it."""
        self._adapters.known(request.model)
        prompt = request.prompt if request.messages is None else self.render(request.messages)
        one = TransformersRequest(
            request, prompt, name=f"{next(self._numbers):08d}{request.tag}", step=self.steps, stage=self._stage
        )
        self._live[one.name] = one
        self._queue.append(one)
        return one

    def step(self) -> None:
        """Admit waiting requests and execute one step if there is work. Raises EngineDied or EngineSilent."""
        try:
            self.driver.do(self._pass)
        except (EngineDied, EngineSilent) as loss:
            self._failure, self._silent = str(loss), isinstance(loss, EngineSilent)
            raise

    def _pass(self) -> None:
        """Execute one step. Runs in the driver's thread."""
        self._admit()
        loop, self._recorder.at = self.parts.loop, self.clock()
        if self._cancelled or any(one.inside for one in self._live.values()):
            loop.step()
        self.steps += 1
        for name in [n for n, cancelled in self._cancelled.items() if self.steps - cancelled >= CANCEL_STEPS]:
            del self._cancelled[name]
            loop.hooks.forget(name)
        for output in loop.outputs():
            if one := self._live.get(output.request_id.partition(CHILD)[0]):
                one.take(output, self.steps)
        for one in list(self._live.values()):
            seen, before = loop.hooks.preemptions(one.name), len(one.preempted_at)
            one.note(cached=loop.hooks.hits.get(one.name, 0), preemptions=seen, step=self.steps)
            self._preemptions += seen - before
            if one.ended is not None:
                self._forget(one)

    def _admit(self) -> None:
        """Pass waiting requests to the engine if they use the active adapter. Switch it only if the engine is empty."""
        while self._queue:
            one = self._queue[0]
            wanted = None if one.request.model == self.base_model else one.request.model
            if wanted is not None and wanted not in self._adapters.names:  # unloaded after the request was sent
                one.problem, one.ended = RequestRefused(404, f"no adapter is called {wanted} any more"), self.steps
                self._queue.popleft()
                continue
            if wanted != self._adapters.on:
                if self._cancelled or any(other.inside for other in self._live.values()):
                    return
                self._adapters.switch(wanted)
            self._queue.popleft()
            one.inside = True
            self.parts.loop.manager.num_return_sequences = one.request.options.answers
            try:
                self.parts.loop.manager.add_request(
                    list(one.prompt),
                    request_id=one.name,
                    max_new_tokens=one.request.max_tokens,
                    streaming=True,
                    eos_token_id=-1,  # no token ends the answer
                )
            except ValueError as problem:
                one.inside, one.problem, one.ended = False, RequestRefused(400, str(problem)), self.steps

    def _stage(self, one: TransformersRequest) -> Stage:
        """Return how far the scheduler has come with a request."""
        if one.tokens:
            return Stage.DECODE
        running = one.inside and one.name in self.parts.loop.processor.scheduler.active_requests
        return Stage.PREFILL if running else Stage.QUEUED

    def disconnect(self, one: TransformersRequest) -> None:
        """Remove a request from the queue or the engine."""
        if one.inside:
            for name in one.names:
                self.parts.loop.manager.cancel_request(name)
                self._cancelled[name] = self.steps  # it may be in one more batch, in which it does not begin anew
            self._live.pop(one.name, None)
        else:
            self._queue.remove(one)
            self._forget(one)

    def _forget(self, one: TransformersRequest) -> None:
        for name in one.names:
            self.parts.loop.hooks.forget(name)
        self._live.pop(one.name, None)

    def _settle(self) -> None:
        """Step until the engine has removed all aborted requests."""
        while self._cancelled:
            self.step()

    def finished(self, one: TransformersRequest) -> Completion | EngineError:
        """Return the result of a request. Without a tokenizer, an answer has no text."""
        tokenizer, ids = self.parts.tokenizer, [token.id for token in one.tokens]
        return one.result("" if tokenizer is None else str(tokenizer.decode(ids, skip_special_tokens=True)))

    def close_burst(self, left: Sequence[TransformersRequest]) -> None:
        """Remove the requests that are left. If there are no others, step until the engine has removed them."""
        for one in left:
            self.disconnect(one)
        if not self._live:
            self._settle()
