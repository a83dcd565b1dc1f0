"""llama.cpp behind its own HTTP routes: spawned with the adapters it is going to need, each request choosing one.

llama.cpp keeps a sequence for each slot and goes on from whatever prefix it shares with the next prompt; adapters are
registered at the start (`--lora`) and chosen by a request's `lora` field. A name that Coldproof loads is therefore
bound here to one of them, and changing what is behind it is the adapter switch that this engine has.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import requests

from adapters.base import (
    Arrival,
    Capability,
    Completion,
    CompletionRequest,
    EngineDied,
    Message,
    Metrics,
    RequestRefused,
    Served,
    Stage,
    Support,
    Token,
)
from adapters.hang_up import hangs_up
from adapters.kv_events import Published
from adapters.llamacpp_setup import (
    ABSENT,
    LlamaCppOptions,
    capabilities,
    command,
    environment,
    flags,
    package_version,
    shape,
    wait_ready,
    write_files,
)
from adapters.lora_files import content_digest
from adapters.openai_http import Wire, events
from adapters.process import EngineProcess, free_port
from adapters.provenance import WrongRead
from adapters.serving import serve_in_threads

HIT, COMPUTED = "llamacpp:prompt_tokens_cached_total", "llamacpp:prompt_tokens_total"
RUNNING, WAITING = "llamacpp:requests_processing", "llamacpp:requests_deferred"
KEPT_STATES = 8  # names under which slots stay saved: their files are as large as what they hold


def spawn(options: LlamaCppOptions, *, on_process: Callable[[EngineProcess], None]) -> LlamaCppEngine:
    """Write the files, start the server and wait until it answers. Raises EngineStartError with the log's tail."""
    digests = write_files(options)
    port = free_port()
    here, words = command(flags(options, digests, port))
    process = EngineProcess(here, environment(), options.log)
    on_process(process)
    wire = Wire(f"http://127.0.0.1:{port}", alive=process.running)
    try:
        wait_ready(wire, process)
        return LlamaCppEngine(options, wire, process, digests, words)
    except BaseException:
        process.stop()
        raise


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
        self.version = package_version()
        self.capabilities: Mapping[Capability, Support] = capabilities(options, self.version)
        self.shape = shape(options, wire.get("/props").json())
        self.saved: list[str] = []  # names, the latest last

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
        given_up = hangs_up(response, abort, self.stage, self.wire.patience)
        if given_up is not None:
            return Completion(tokens=(), finish_reason=None, cached_tokens=None, aborted=given_up)
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

    def save_state(self, name: str) -> int:
        """POST /slots/ID?action=save for every slot, a file for each. Of many names the oldest are forgotten."""
        self.saved = [*(one for one in self.saved if one != name), name]
        for old in self.saved[:-KEPT_STATES]:
            self.forget_state(old)
        return sum(int(self.slot(number, "save", name)["n_saved"]) for number in range(self.slots))

    def restore_state(self, name: str) -> int:
        """POST /slots/ID?action=restore for every slot: what held nothing is empty again."""
        return sum(int(self.slot(number, "restore", name)["n_restored"]) for number in range(self.slots))

    @property
    def slots(self) -> int:
        """How many."""
        return self.shape.sequences or 1

    def slot(self, number: int, action: str, name: str) -> dict[str, Any]:
        """What the server says of saving or restoring a slot. Raises RequestRefused where it does not."""
        told = self.wire.post(f"/slots/{number}?action={action}", {"filename": f"{name}-{number}.bin"}).json()
        return dict(told)

    def forget_state(self, name: str) -> None:
        """Remove its files."""
        self.saved.remove(name)
        folder = self.options.states
        if folder is not None:
            for number in range(self.slots):
                (folder / f"{name}-{number}.bin").unlink(missing_ok=True)

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
        """End it, and leave no saved slots behind."""
        self.process.stop()
        for name in list(self.saved):
            self.forget_state(name)


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
