"""llama.cpp behind its own HTTP routes: spawned with the adapters it is going to need, each request choosing one.

llama.cpp keeps a sequence for each slot and goes on from whatever prefix it shares with the next prompt; adapters are
registered at the start (`--lora`) and chosen by a request's `lora` field. A name that Coldproof loads is therefore
bound here to one of them, and changing what is behind it is the adapter switch that this engine has.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import requests

from adapters.base import (
    Arrival,
    Capability,
    Completion,
    CompletionRequest,
    EngineDied,
    EngineShape,
    EngineStartError,
    Message,
    Metrics,
    RequestRefused,
    Served,
    Stage,
    Support,
    Token,
)
from adapters.gguf_files import NotTranslated, write_adapter, write_model
from adapters.kv_events import Published
from adapters.lora_files import content_digest
from adapters.openai_http import Wire, arrives, events
from adapters.process import EngineProcess, free_port
from adapters.provenance import WrongRead
from adapters.serving import serve_in_threads

SERVER = Path(__file__).with_name("llamacpp_server.py")
START_SECONDS = 60.0
SLOTS = "--parallel"
SIZES = {"--ctx-size": "8192", SLOTS: "4"}  # tokens of all slots together; each has its share
# llama.cpp's default, KV in half precision, gives other tokens now and then without any cache.
EXACT = (
    "--cache-type-k",
    "f32",
    "--cache-type-v",
    "f32",
    "--flash-attn",
    "off",
    "--threads",
    "1",
    "--threads-batch",
    "1",
)
ALWAYS = ("--no-warmup", "--metrics", "--slots", "--lora-init-without-apply")  # each request says what it wants
HIT, COMPUTED = "llamacpp:prompt_tokens_cached_total", "llamacpp:prompt_tokens_total"
RUNNING, WAITING = "llamacpp:requests_processing", "llamacpp:requests_deferred"
BOUND = "registered at the start; a name is bound to one of them, which its requests then choose by their lora field"
ABSENT = {
    Capability.CACHE_SALT: "a request has no salt",
    Capability.CHAT: "the model made on the spot has no text of its own",
    Capability.PRIORITY: "requests are served in the order of their arrival",
    Capability.PROMPT_LOGPROBS: "scores are told of the answer only",
    Capability.SEVERAL_ANSWERS: "/completion gives one answer",
    Capability.STOP_STRINGS: "the model made on the spot has no text of its own",
    Capability.STRUCTURED_OUTPUT: "the model made on the spot has no text of its own",
    Capability.CACHE_RESET: "no route empties every slot and the host's prompt cache",
    Capability.KV_EVENTS: "nothing is published about the cache",
    Capability.PREEMPTION_COUNTS: "requests are not preempted",
    Capability.POOL_USAGE: "each slot keeps its sequence until another one needs it",
    Capability.PROVENANCE: "keys and values do not say whose they are",
    Capability.SEVERAL_GROUPS: "all layers are of one kind",
}
PRESENT = {
    Capability.TOKEN_PROMPTS: "/completion takes token ids",
    Capability.TOKEN_OUTPUTS: "/completion returns token ids (return_tokens)",
    Capability.STREAMING: "an event for each token",
    Capability.CACHED_TOKENS: "timings.cache_n",
    Capability.LOGPROBS: "n_probs",
    Capability.ABORT: "a closed connection ends its task",
    Capability.METRICS: "/metrics counts cached and computed prompt tokens",
    Capability.BLOCK_SIZE: "a slot goes on from any token of its sequence",
    Capability.POOL_SIZE: "/props tells slots and their tokens",
    Capability.SPAWNABLE: "started by Coldproof",
}


class LlamaCppOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to start: a model folder, adapter folders, flags of `llama-server`, and a log."""

    model: str
    prefix_caching: bool
    adapters: tuple[Path, ...] = ()
    arguments: tuple[str, ...] = ()
    log: Path


def spawn(options: LlamaCppOptions, *, on_process: Callable[[EngineProcess], None]) -> LlamaCppEngine:
    """Write the files, start the server and wait until it answers. Raises EngineStartError with the log's tail."""
    folder = options.log.with_suffix(".gguf")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        write_model(Path(options.model), folder / "model.gguf")
        digests = [content_digest(source) for source in options.adapters]
        for source, digest in zip(options.adapters, digests, strict=True):
            write_adapter(source, folder / f"{digest}.gguf", model=Path(options.model))
    except (NotTranslated, ImportError, OSError, KeyError, ValueError) as problem:
        raise EngineStartError(f"cannot write the model for llama.cpp: {problem}") from problem
    port = free_port()
    flags = ["--model", str(folder / "model.gguf"), "--port", str(port), *ALWAYS, *EXACT, *options.arguments]
    flags += [word for flag, size in SIZES.items() if flag not in options.arguments for word in (flag, size)]
    flags += [word for digest in digests for word in ("--lora", str(folder / f"{digest}.gguf"))]
    process = EngineProcess([sys.executable, str(SERVER), *flags], environment(), options.log)
    on_process(process)
    wire = Wire(f"http://127.0.0.1:{port}", alive=process.running)
    try:
        wait_ready(wire, process)
        return LlamaCppEngine(options, wire, process, digests, shlex.join(["llama-server", *flags]))
    except BaseException:
        process.stop()
        raise


def environment() -> dict[str, str]:
    """The user's, with as few threads as a tiny model can use."""
    return {"OMP_NUM_THREADS": "1", **os.environ}


def wait_ready(wire: Wire, process: EngineProcess) -> None:
    """Poll /health. Raises EngineStartError when the process ends first or time runs out."""
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and process.running():
        try:
            if wire.session().get(f"{wire.url}/health", timeout=2).status_code == 200:
                process.remember()
                return
        except requests.RequestException:
            time.sleep(0.05)
    what = "did not become ready" if process.running() else f"ended with exit code {process.exit_code()}"
    raise EngineStartError(f"llama.cpp {what} (package xllamacpp); the end of its log:\n{process.tail()}")


class LlamaCppEngine:
    """One llama.cpp server."""

    name = "llamacpp"
    base_model = "base"

    def __init__(
        self,
        options: LlamaCppOptions,
        wire: Wire,
        process: EngineProcess,
        digests: Sequence[str],
        command: str,
    ) -> None:
        self.options, self.wire, self.process = options, wire, process
        self.registered = {digest: number for number, digest in enumerate(digests)}
        self.bound: dict[str, int] = {}
        self.everywhere: str | None = None  # the name of what is switched on for all who choose nothing
        self.config: Mapping[str, str] = {"command": command, "model": options.model}
        facts = wire.get("/props").json()
        slots, longest = int(facts["total_slots"]), int(facts["default_generation_settings"]["n_ctx"])
        self.version: str | None = package_version()
        loads = Support(bool(digests), f"{len(digests)} adapters are {BOUND}" if digests else "none was given")
        self.capabilities: Mapping[Capability, Support] = {
            **{capability: Support(True, evidence) for capability, evidence in PRESENT.items()},
            **{capability: Support(False, evidence) for capability, evidence in ABSENT.items()},
            Capability.ADAPTER_CHOICE: loads,
            Capability.MIXED_ADAPTERS: loads,
            Capability.ADAPTER_SWITCH: msgspec.structs.replace(loads, evidence="POST /lora-adapters"),
            Capability.RUNTIME_LORA: Support(False, "adapters are read at the start (--lora)"),
            Capability.LORA_IN_PLACE: Support(False, "adapters are read at the start (--lora)"),
            Capability.SECOND_TIER: Support(False, "the host's prompt cache tells no counts of its own"),
            Capability.VERSION: Support(self.version is not None, f"the package says {self.version}"),
        }
        self.shape = EngineShape(
            block_size=1,
            pool_blocks=slots * longest,
            max_model_tokens=longest,
            sequences=slots,
            uniform="sliding_window" not in json.loads(Path(options.model, "config.json").read_text()),
            adapter_slots=len(digests) or None,
            prefix_caching=options.prefix_caching,
            most_requests=slots,
        )

    def clock(self) -> float:
        """The wall's."""
        return time.monotonic()

    def complete(self, request: CompletionRequest) -> Completion:
        """POST /completion, once."""
        return self.completed(request, lambda _: None)

    def serve(
        self, arrivals: Sequence[Arrival], on_token: Callable[[int, int], None], between: Callable[[], None]
    ) -> list[Served]:
        """A thread and a connection for each request."""
        return serve_in_threads(arrivals, self.completed, self.clock, on_token, between)

    def completed(self, request: CompletionRequest, on_token: Callable[[int], None]) -> Completion:
        """The answer, read from the stream; the client hangs up where the request says so."""
        began = self.clock()
        try:
            with self.wire.session().post(
                f"{self.wire.url}/completion", json=self.body(request), stream=True, timeout=(10, self.wire.patience)
            ) as response:
                if response.status_code >= 400:
                    raise RequestRefused(response.status_code, response.text)
                return self.read(response, request, on_token, began)
        except requests.RequestException as problem:
            gone = self.wire.wait_dead(5.0)
            what = "the engine's process has ended" if gone else "cannot talk to llama.cpp"
            raise EngineDied(f"{what} ({type(problem).__name__})") from problem

    def body(self, request: CompletionRequest) -> dict[str, Any]:
        """The request's JSON. Who asks the base model says nothing of adapters, as most clients would, unless one is
        switched on for all."""
        said: dict[str, Any] = {
            "prompt": list(request.prompt),
            "n_predict": request.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_tokens": True,
            "stream": True,
            "cache_prompt": self.options.prefix_caching,
        }
        if request.model in self.bound:
            said["lora"] = [{"id": self.bound[request.model], "scale": 1.0}]
        elif request.model not in (self.base_model, self.everywhere):
            raise RequestRefused(404, f"no adapter is called {request.model}")
        elif request.model == self.base_model and self.everywhere is not None:
            said["lora"] = [{"id": number, "scale": 0.0} for number in self.registered.values()]
        if request.surface.logprobs:
            said["n_probs"] = 2
        return said

    def read(
        self, response: requests.Response, request: CompletionRequest, on_token: Callable[[int], None], began: float
    ) -> Completion:
        """The events up to the end, or to where the client hangs up."""
        tokens: list[Token] = []
        abort = request.abort
        if abort is not None and abort.after_tokens == 0 and not arrives(response, abort.after_ms / 1000):
            return Completion(tokens=(), finish_reason=None, cached_tokens=None, aborted=self.stage())
        for event in events(response):
            told = json.loads(event)
            if "error" in told:
                raise RequestRefused(int(told["error"].get("code", 500)), str(told["error"].get("message")))
            tokens += read_tokens(told, self.clock() - began)
            if tokens:
                on_token(len(tokens))
            if told["stop"]:
                cached = told.get("timings", {}).get("cache_n")
                return Completion(tokens=tuple(tokens), finish_reason=reason(told), cached_tokens=cached)
            if abort is not None and len(tokens) >= max(1, abort.after_tokens):
                return Completion(tokens=tuple(tokens), finish_reason=None, cached_tokens=None, aborted=Stage.DECODE)
        raise EngineDied("the stream ended before its last event")

    def stage(self) -> Stage:
        """Where a request without a token most likely is, by the engine's gauges."""
        now = self.metrics()
        if now.waiting:
            return Stage.QUEUED
        return Stage.PREFILL if now.running else Stage.UNSEEN

    def render(self, messages: tuple[Message, ...]) -> tuple[int, ...]:
        """There is no chat. Raises RequestRefused."""
        raise RequestRefused(501, f"{len(messages)} messages: {ABSENT[Capability.CHAT]}")

    def load_adapter(self, name: str, path: str, *, in_place: bool) -> None:
        """Bind a name to the registered adapter with these files. Raises RequestRefused where there is none."""
        number = self.number_of(path)
        if in_place or name in self.bound:
            raise RequestRefused(400, f"{name}: an adapter that was read at the start cannot be replaced")
        self.bound[name] = number

    def switch_adapter(self, name: str, path: str) -> None:
        """POST /lora-adapters: from now on requests that say nothing of adapters are under this one."""
        self.set_scales(self.number_of(path))
        self.everywhere = name

    def number_of(self, path: str) -> int:
        """The registered adapter with these files. Raises RequestRefused where there is none."""
        try:
            return self.registered[content_digest(Path(path))]
        except OSError as problem:
            raise RequestRefused(404, f"no adapter files in {path}: {problem.strerror}") from problem
        except KeyError as problem:
            raise RequestRefused(404, f"the adapter files in {path} were not registered at the start") from problem

    def set_scales(self, on: int | None) -> None:
        """One adapter for all requests that choose none, or none."""
        self.wire.post("/lora-adapters", [{"id": i, "scale": float(i == on)} for i in self.registered.values()])

    def unload_adapter(self, name: str) -> None:
        """Forget a name; switch off what was switched on for it."""
        if name == self.everywhere:
            self.set_scales(None)
            self.everywhere = None
        elif self.bound.pop(name, None) is None:
            raise RequestRefused(404, f"no adapter is called {name}")

    def reset_cache(self) -> bool:
        """There is no reset. Raises RequestRefused."""
        raise RequestRefused(501, ABSENT[Capability.CACHE_RESET])

    def metrics(self) -> Metrics:
        """GET /metrics."""
        lines = (line.split() for line in self.wire.get("/metrics").text.splitlines() if not line.startswith("#"))
        values = {parts[0]: float(parts[1]) for parts in lines if len(parts) == 2}
        hit, fresh = values.get(HIT), values.get(COMPUTED)
        return Metrics(
            queried_tokens=None if hit is None or fresh is None else hit + fresh,
            hit_tokens=hit,
            running=values.get(RUNNING),
            waiting=values.get(WAITING),
        )

    def take_events(self) -> Published:
        """Nothing is published."""
        return Published()

    def wrong_reads(self) -> tuple[WrongRead, ...]:
        """Nothing tells."""
        return ()

    def alive(self) -> bool:
        """Whether its process runs."""
        return self.process.running()

    def log_tail(self) -> str:
        """The end of its log."""
        return self.process.tail()

    def stop(self) -> None:
        """End it."""
        self.process.stop()


def read_tokens(told: Mapping[str, Any], at: float) -> list[Token]:
    """The tokens of one event, with their scores if those were asked for."""
    scores = told.get("completion_probabilities") or [{}] * len(told.get("tokens", ()))
    return [scored(number, at, score) for number, score in zip(told.get("tokens", ()), scores, strict=False)]


def scored(number: int, at: float, score: Mapping[str, Any]) -> Token:
    """A token with its logprob and the gap between the two likeliest."""
    top = [one["logprob"] for one in score.get("top_logprobs", ())]
    gap = abs(top[0] - top[1]) if len(top) > 1 else None
    return Token(id=int(number), at=at, logprob=score.get("logprob"), gap=gap)


def reason(told: Mapping[str, Any]) -> str:
    """Why an answer ended, in the words of the OpenAI wire."""
    return "length" if told.get("stop_type") == "limit" else "stop"


def package_version() -> str | None:
    """The package's; the library does not tell which llama.cpp it was made of."""
    try:
        return importlib.metadata.version("xllamacpp")
    except importlib.metadata.PackageNotFoundError:
        return None
