"""ONNX Runtime GenAI in this process, stepped by Coldproof: a step generates one token of one request.

The library has no server and no cache of several sequences on a CPU. A generator keeps the KV of its one sequence, and
programs go on with it: see `generator.py`. Requests therefore run one after the other.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from coldproof.adapters.common.absent_features import AbsentFeatures
from coldproof.adapters.common.started_server import package_version
from coldproof.adapters.common.stepping import SteppedEngine, SteppedRequest, seconds
from coldproof.adapters.ortgenai.generator import Continued
from coldproof.adapters.ortgenai.onnx_model import AGAIN, parameters
from coldproof.adapters.ortgenai.setup import PACKAGE, capabilities, converted, library, options_of, shape
from coldproof.adapters.protocol.engine import EngineError, EngineStartError, RequestRefused, Served
from coldproof.adapters.protocol.metrics import Metrics
from coldproof.adapters.protocol.requests import Arrival, Completion, CompletionRequest, Stage, Token
from coldproof.adapters.spec.engine_spec import StartOptions

STOPPED = "the engine was stopped"


def start(options: StartOptions) -> OrtGenaiEngine:
    """Convert the model, load it, and make a generator. Raises EngineStartError."""
    module = library()
    try:
        given = options_of(options.arguments)
        model = module.Model(str(converted(options)))
        made = parameters(model, given)
        module.Generator(model, made)  # refuses wrong options
    except (RuntimeError, ValueError, OSError) as problem:
        raise EngineStartError(f"ONNX Runtime GenAI did not start: {problem}") from problem
    again = bool(given.get(AGAIN))
    return OrtGenaiEngine(
        options, Continued(lambda: module.Generator(model, made), caching=options.caching, again=again)
    )


class OrtGenaiRequest(SteppedRequest):
    """A request. `cached`: how many tokens of its prompt had KV; None before its first step."""

    cached: int | None = None
    failure: RequestRefused | None = None

    def stage(self) -> Stage:
        """Return its stage: the first step computes the prompt."""
        return Stage.QUEUED if self.cached is None else Stage.DECODE


class OrtGenaiEngine(AbsentFeatures, SteppedEngine[OrtGenaiRequest]):
    """The adapter. It runs only inside `serve`, one burst at a time."""

    name, base_model = "ortgenai", "base"

    def __init__(self, options: StartOptions, continued: Continued) -> None:
        self.options, self._continued = options, continued
        self.version = package_version(PACKAGE)
        self.config: Mapping[str, str] = {
            "engine": "a generator of ONNX Runtime GenAI, in this process",
            "model": options.model,
            "options": json.dumps(options_of(options.arguments)),
        }
        self.capabilities = capabilities(self.version)
        self.shape = shape(caching=options.caching)
        self.steps, self._failure = 0, ""
        self._lock = threading.RLock()
        self._queue: deque[OrtGenaiRequest] = deque()

    def serve(
        self, arrivals: Sequence[Arrival], on_token: Callable[[int, int], None], between: Callable[[], None]
    ) -> list[Served]:
        """Step until all requests have ended."""
        with self._lock:
            return super().serve(arrivals, on_token, between)

    def send(self, request: CompletionRequest) -> OrtGenaiRequest:
        """Queue a request. Raises RequestRefused for one that does not fit, or another model."""
        if request.model != self.base_model:
            raise RequestRefused(404, f"no model is called {request.model}")
        if not request.prompt or len(request.prompt) + request.max_tokens > self.shape.max_model_tokens:
            raise RequestRefused(400, f"a sequence has 1 to {self.shape.max_model_tokens} tokens")
        one = OrtGenaiRequest(request, self.steps)
        self._queue.append(one)
        return one

    def step(self) -> None:
        """Generate one token of the first request."""
        self.steps += 1
        if not self._queue:
            return
        one = self._queue[0]
        try:
            if one.cached is None:
                one.cached = self._continued.begin(one.request.prompt)
            token = self._continued.next()
        except RuntimeError as problem:  # what the library raises
            one.failure = RequestRefused(500, str(problem))
            self._continued.generator = None
        else:
            one.tokens.append(Token(id=token, at=seconds(self.steps - one.step)))
        if one.failure is not None or one.count == one.request.max_tokens:
            one.finish_reason, one.ended = "length", self.steps
            self._queue.popleft()

    def disconnect(self, request: OrtGenaiRequest) -> None:
        """Generate no further token of a request."""
        self._queue.remove(request)

    def finished(self, request: OrtGenaiRequest) -> Completion | EngineError:
        """Return the result of a request."""
        return request.failure or Completion(
            tokens=tuple(request.tokens),
            finish_reason=request.finish_reason,
            cached_tokens=request.cached,
            prompt=request.request.prompt,
            aborted=request.aborted,
        )

    def close_burst(self, unfinished: Sequence[OrtGenaiRequest]) -> None:
        """Abort the requests that are left."""
        for request in unfinished:
            self.disconnect(request)

    def reset_cache(self) -> bool:
        """Rewind the generator to its beginning, unless a request needs its sequence."""
        with self.entered():
            if self._queue:
                return False
            self._continued.rewind()
        return True

    def load_adapter(self, name: str, path: str, *, in_place: bool) -> None:
        """Raise RequestRefused: the adapter loads none."""
        raise RequestRefused(501, f"{name} from {path}, in place: {in_place}: no adapters are loaded")

    def unload_adapter(self, name: str) -> None:
        """Raise RequestRefused: the adapter loads none."""
        raise RequestRefused(404, f"no adapter is called {name}")

    def metrics(self) -> Metrics:
        """Return nothing: the library counts nothing."""
        return Metrics()

    def alive(self) -> bool:
        """Return whether it was not stopped."""
        return not self._failure

    def log_tail(self) -> str:
        """Return nothing: the library writes no log."""
        return ""

    def stop(self) -> None:
        """Free the generator and the model. A call from `between` ends the burst with EngineDied."""
        self._failure = STOPPED
        self._queue.clear()
        self._continued = Continued(lambda: None, caching=False)
