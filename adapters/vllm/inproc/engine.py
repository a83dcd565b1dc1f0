"""vLLM's engine core in this process, stepped by Coldproof.

With a server, threads and sockets decide when requests arrive, are preempted and are aborted. Here a burst is a loop
over engine steps: each arrival and each abort happens at its step, so a run repeats exactly. Time is counted in steps;
no result depends on the wall clock.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from coldproof.adapters.common.absent_features import AbsentFeatures
from coldproof.adapters.common.process import log_tail
from coldproof.adapters.common.redact import redacted
from coldproof.adapters.common.stepping import SteppedEngine
from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.protocol.engine import EngineDied, EngineError, EngineStartError, RequestRefused, Served
from coldproof.adapters.protocol.engine_steps import EngineStep
from coldproof.adapters.protocol.kv_events import Published, hash_rule
from coldproof.adapters.protocol.lost_files import Loss
from coldproof.adapters.protocol.metrics import Metrics
from coldproof.adapters.protocol.provenance import WrongRead
from coldproof.adapters.protocol.requests import ENGINE_ABORT, Arrival, Completion, CompletionRequest, Message
from coldproof.adapters.protocol.resets import ResetScope
from coldproof.adapters.protocol.shape import EngineShape
from coldproof.adapters.protocol.sides import Side
from coldproof.adapters.vllm.inproc.capabilities import cache_settings, capabilities, chat_ids, known_seed, shape
from coldproof.adapters.vllm.inproc.front_end import FrontEnd
from coldproof.adapters.vllm.inproc.process import vllm_module
from coldproof.adapters.vllm.inproc.refusals import refusals
from coldproof.adapters.vllm.inproc.request import AdapterNames, InprocRequest, engine_input, parameters
from coldproof.adapters.vllm.inproc.sessions import Sessions
from coldproof.adapters.vllm.inproc.setup import (
    LOCK,
    LOGGER,
    InprocEngineParts,
    build,
    flags,
    log_to,
    shut_down,
)
from coldproof.adapters.vllm.inproc.steps import StepRecorder
from coldproof.adapters.vllm.inproc.tier_server import keeps_own_time, restarted_server, step_in_time
from coldproof.adapters.vllm.inproc.weights import WeightControl
from coldproof.adapters.vllm.kv_tiers import persistence
from coldproof.adapters.vllm.server import (
    HASH_SEED,
    VllmOptions,
    effective_environment,
    environment_text,
    server_command,
    tier_folder,
)

SERVER_PORT = 8000
KV_FILES = ".bin"  # how vLLM's file tier names files with KV (vllm/v1/kv_offload/file_mapper.py)
DRAIN_STEPS = 100  # a connector that still has work after so many steps will not finish


def start(options: VllmOptions) -> InprocEngine:
    """Start an engine in this process. The first takes about 10 s, others 1 to 2 s. Raises EngineStartError."""
    parts = build(options)
    try:
        return InprocEngine(options, parts)
    except BaseException:
        shut_down(parts)
        raise


def reset_side_caches(front_end: FrontEnd, scope: tuple[ResetScope, ...]) -> None:
    """Empty the caches of images that are in `scope`."""
    if ResetScope.PROCESSOR in scope:
        front_end.call("reset_mm_cache")
    if ResetScope.ENCODER in scope:
        front_end.call("reset_encoder_cache")


class InprocEngine(WeightControl, AbsentFeatures, SteppedEngine[InprocRequest]):
    """The adapter of an in-process engine. The engine runs only inside `serve`, one burst at a time."""

    name = "vllm-inproc"

    def __init__(self, options: VllmOptions, parts: InprocEngineParts) -> None:
        self.options = options
        self._parts: InprocEngineParts | None = parts
        self._failure = ""  # why the engine has terminated
        self._in_time = options.prefix_caching and keeps_own_time(options.tier)
        self.steps = 0
        self._live: dict[str, InprocRequest] = {}
        self._sessions = Sessions()
        self._past_preemptions = 0
        self._numbers = itertools.count(1)
        self._lock = threading.RLock()
        with self.entered() as parts:
            settings = parts.engine.vllm_config
            self._defaults = parts.engine.model_config.get_diff_sampling_param()  # read from a file at each call
            self.base_model: str = settings.model_config.served_model_name
            version: str = vllm_module("version").__version__
            self.version: str | None = version
            self.shape: EngineShape = shape(parts, digests=options.topology is not None)
            self.capabilities: Mapping[Capability, Support] = capabilities(
                parts, version, digests=options.topology is not None, persistent=persistence(options.tier)
            )
            self._cache_settings = cache_settings(settings)
            self._adapters = AdapterNames(parts.engine, self.base_model)
            caching = settings.cache_config.enable_prefix_caching
            self._recorder = StepRecorder(parts.core.scheduler, self.clock) if caching else None

    @property
    def config(self) -> Mapping[str, str]:
        """Return the engine's flags, the command of a server with the same configuration, and the cache settings."""
        return {
            "engine": "vLLM's engine core, stepped in this process",
            "flags": redacted(shlex.join(flags(self.options))),
            "command": redacted(shlex.join(server_command(self.options, port=SERVER_PORT))),
            "environment": environment_text(effective_environment(self.options.environment, exact=self.options.exact)),
            **self._cache_settings,
        }

    def serve(
        self, arrivals: Sequence[Arrival], on_token: Callable[[int, int], None], between: Callable[[], None]
    ) -> list[Served]:
        """Step until all requests have ended."""
        with self._lock:
            return super().serve(arrivals, on_token, between)

    def render(self, messages: tuple[Message, ...]) -> tuple[int, ...]:
        """Return the token ids of a chat, as the server's chat endpoint renders it. Raises RequestRefused."""
        with self.entered() as parts, refusals():
            return chat_ids(parts, messages)

    def load_adapter(self, name: str, path: str, *, in_place: bool) -> None:
        """Load or replace an adapter between two steps. Raises RequestRefused."""
        with self.entered():
            self._adapters.load(name, path, in_place=in_place)

    def unload_adapter(self, name: str) -> None:
        """Unload an adapter. Raises RequestRefused for an unknown name."""
        with self.entered():
            self._adapters.unload(name)

    def reset_cache(self) -> bool:
        """Empty the prefix cache. Return whether that worked: it fails while requests hold blocks."""
        with self.entered() as parts:
            done = bool(FrontEnd(parts.engine).call("reset_prefix_cache"))
            self._stamp_events(parts)
            return done

    def reset_more(self, scope: tuple[ResetScope, ...]) -> bool:
        """Empty the prefix cache and what is in `scope`. Raises RequestRefused if vLLM raises an exception."""
        with self.entered() as parts, refusals():
            front_end = FrontEnd(parts.engine)
            done = bool(
                front_end.call(
                    "reset_prefix_cache",
                    reset_running_requests=ResetScope.RUNNING in scope,
                    reset_connector=ResetScope.SECOND_TIER in scope,
                )
            )
            reset_side_caches(front_end, scope)
            self._stamp_events(parts)
            return done

    def reset_beside(self, scope: tuple[ResetScope, ...]) -> bool:
        """Empty the caches in `scope` only. vLLM's calls return nothing: they have succeeded if they return."""
        with self.entered() as parts, refusals():
            reset_side_caches(FrontEnd(parts.engine), scope)
        return True

    def restart_side(self, side: Side) -> None:
        """Kill the server of the second tier and start it again. Raises EngineDied if it does not start."""
        with self.entered() as parts:
            if side is not Side.TIER or parts.tier_server is None:
                raise RequestRefused(501, f"this engine has no {side} that could be restarted")
            try:
                following = restarted_server(self.options, parts.tier_server)
            except EngineStartError as problem:
                self._failure = f"the tier's server did not start again: {problem}"
                raise EngineDied(self._failure) from problem
            self._parts = msgspec.structs.replace(parts, tier_server=following)

    def lose_files(self, loss: Loss) -> int:
        """Remove or cut the files of the tier, in the folder that only this engine uses."""
        with self.entered():
            files = sorted(tier_folder(self.options).rglob(f"*{KV_FILES}"))
            for file in files:
                if loss is Loss.REMOVED:
                    file.unlink()
                else:
                    os.truncate(file, file.stat().st_size // 2)
        return len(files)

    def _stamp_events(self, parts: InprocEngineParts) -> None:
        """Give the KV events that were published since the last step or reset the time of now."""
        if parts.events is not None:
            parts.events.stamp(self.clock())

    def metrics(self) -> Metrics:
        """Return the counters that the server would publish, and the scheduler's exact count of preemptions."""
        with self.entered() as parts:
            running, waiting = parts.core.scheduler.get_request_counts()
            return Metrics(
                queried_tokens=parts.stats.queried_tokens,
                hit_tokens=parts.stats.hit_tokens,
                **self._second_tier_counters(parts),
                **self._draft_counters(parts),
                preemptions=self._past_preemptions + sum(one.preemptions for one in self._live.values()),
                running=running,
                waiting=waiting,
                pool_usage=parts.core.scheduler.kv_cache_manager.usage,
            )

    def take_events(self) -> Published:
        """Return and remove the KV events that the scheduler has published; empty if events are disabled."""
        with self.entered() as parts:
            if parts.events is None:
                return Published()
            seed = os.environ.get(HASH_SEED) or known_seed(self._cache_settings)
            return Published(batches=parts.events.take(), rule=hash_rule(self._cache_settings, seed))

    def take_steps(self) -> tuple[EngineStep, ...] | None:
        """Return and remove the recorded steps of the scheduler; None without a cache."""
        return None if self._recorder is None else self._recorder.take()

    def wrong_reads(self) -> tuple[WrongRead, ...]:
        """Return and remove the wrong reads that the fingerprint worker has recorded."""
        if self.options.topology is None:
            return ()
        with self.entered() as parts:
            (rows,) = parts.engine.collective_rpc("take_wrong_reads")
        return tuple(msgspec.convert(row, WrongRead) for row in rows)

    def _second_tier_counters(self, parts: InprocEngineParts) -> dict[str, int]:
        """Return the counters of the second tier; empty for an engine without one."""
        if not self.shape.second_tier:
            return {}
        names = ["external_queried_tokens", "external_hit_tokens", "resumed_hit_tokens", "failed_loads"]
        if self.capabilities[Capability.SLOW_TIER].present:
            names.append("slow_hit_tokens")
        return {name: getattr(parts.stats, name) for name in names}

    def _draft_counters(self, parts: InprocEngineParts) -> dict[str, int]:
        """Return the counters of speculative decoding; empty for an engine without it, whose server has none."""
        if not self.capabilities[Capability.DRAFT_COUNTS].present:
            return {}
        return {name: getattr(parts.stats, name) for name in ("drafted_tokens", "accepted_tokens")}

    def alive(self) -> bool:
        """Return whether the engine can serve: it has not been stopped, and no step has failed."""
        return self._parts is not None and not self._failure

    def log_tail(self) -> str:
        """Return the end of vLLM's log of this engine."""
        return log_tail(self.options.log)

    def stop(self) -> None:
        """Stop the engine. A call from `between` ends the burst with EngineDied."""
        with LOCK:
            parts, self._parts = self._parts, None
            self._failure = self._failure or "the engine was stopped"
            self._live.clear()
            if parts is not None:
                shut_down(parts)

    @contextlib.contextmanager
    def entered(self) -> Iterator[InprocEngineParts]:
        """Hold the lock of vLLM's global state. Raises EngineDied if the engine has terminated."""
        with LOCK:
            if self._parts is None or self._failure:
                raise EngineDied(self._failure)
            if self._parts.log in LOGGER.handlers:  # entered already
                yield self._parts
                return
            with log_to(self._parts.log), self._parts.own_globals.active():
                yield self._parts

    def send(self, request: CompletionRequest) -> InprocRequest:
        """Add a request to the engine. Raises RequestRefused if the server would refuse it."""
        number = next(self._numbers)
        name = f"{number:08d}{request.tag}"
        adapter = self._adapters.lora_request(request.model)
        with self.entered() as parts:
            prompt = request.prompt if request.messages is None else self.render(request.messages)
            try:
                with refusals():
                    inputs = {
                        "prompt": engine_input(parts.engine, request, prompt[request.held :], self.shape),
                        "params": parameters(self._defaults, request),
                        "arrival_time": float(number),  # vLLM uses it only to order requests of equal priority
                        "lora_request": adapter,
                        "priority": request.priority,
                    }
                    if request.session is None:
                        inner = parts.engine.add_request(name, **inputs)
                    else:
                        name, inner, _ = self._sessions.send(parts, request, name, **inputs)
            except RequestRefused:
                parts.engine.abort_request([name])  # the engine may have registered a part of it
                raise
            one = InprocRequest(
                request, name=name, inner=inner, scheduled=parts.core.scheduler.requests, step=self.steps
            )
        one.wait_for_grammar()
        self._live[name] = one
        return one

    def close_session(self, name: str, *, aborted: bool) -> None:
        """End a session between two steps."""
        with self.entered() as parts:
            self._sessions.close(parts, name, aborted=aborted)
        self.close_burst([])

    def step(self) -> None:
        """Execute one step of the engine. Raises EngineDied if it fails."""
        with self.entered() as parts:
            try:
                outputs = step_in_time(parts.engine) if self._in_time else parts.engine.step()
            except Exception as problem:
                LOGGER.exception("a step failed")
                self._failure = f"a step of the engine failed: {type(problem).__name__}: {problem}"
                raise EngineDied(self._failure) from problem
            self.steps += 1
            self._stamp_events(parts)
        for one in self._live.values():
            one.note_preemptions(self.steps)
        for output in outputs:
            one = self._live[output.request_id]
            one.take(output, self.steps)
            if one.ended is not None:
                self._forget(one)

    def end_aborted(self) -> None:
        """End the requests that the scheduler has dropped: in this process, vLLM sends no output about them.

        One whose blocks a tier still reads stays there, as finished.
        """
        with self.entered() as parts:
            scheduled = {name for name, one in parts.core.scheduler.requests.items() if not one.is_finished()}
            dropped = [one for one in self._live.values() if not any(n in scheduled for n in one.inner_names)]
        for one in dropped:
            one.finish_reason, one.ended = ENGINE_ABORT, self.steps
            self.disconnect(one)

    def disconnect(self, one: InprocRequest) -> None:
        """Abort a request, one answer after the other: together, vLLM would abort them in a random order.

        A turn ends its session.
        """
        with self.entered() as parts:
            for name in one.inner_names:
                parts.engine.abort_request([name], internal=True)
        self._forget(one)

    def finished(self, one: InprocRequest) -> Completion | EngineError:
        """Return the result of a request."""
        return one.result()

    def close_burst(self, left: Sequence[InprocRequest]) -> None:
        """Abort the requests that are left, and step while a connector has work, as an idle server does."""
        for one in left:
            self.disconnect(one)
        for _ in range(DRAIN_STEPS):
            with self.entered() as parts:
                scheduler = parts.core.scheduler
                if scheduler.connector is None or not scheduler.has_requests():
                    return
            self.step()

    def _forget(self, one: InprocRequest) -> None:
        self._past_preemptions += one.preemptions
        del self._live[one.name]
