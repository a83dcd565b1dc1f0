"""Starts and stops vLLM's engine in this process.

Only this module imports vLLM, and only when an engine is started. Some of vLLM's state is global (forward context,
process group, logger), so code that uses it must hold `LOCK`.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import os
import random
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from coldproof.adapters.common import score_noise
from coldproof.adapters.common.environment import current_environment
from coldproof.adapters.common.process import EngineProcess
from coldproof.adapters.protocol.engine import EngineStartError
from coldproof.adapters.vllm.cells.cell import RUNNER_V2, Variables
from coldproof.adapters.vllm.inproc import kv_events
from coldproof.adapters.vllm.inproc.kv_events import EventRecorder, PublishedBatches
from coldproof.adapters.vllm.inproc.own_globals import OwnGlobals
from coldproof.adapters.vllm.inproc.process import GARBAGE, limit_threads, share_process, vllm_module
from coldproof.adapters.vllm.inproc.tier_server import started_server
from coldproof.adapters.vllm.kv_tiers import FAILED_LOADS
from coldproof.adapters.vllm.plugins import install_noise, register_transfer_backend
from coldproof.adapters.vllm.releases import (
    PARSERS,
    executor_class,
    find_module,
    missing_internals,
    process_group_kept,
    record_every_step,
    weight_transfer_config,
)
from coldproof.adapters.vllm.server import VllmOptions, added_environment, check_model, numbers_hint, server_command

LOCK = threading.RLock()
LOGGER = logging.getLogger("vllm")
# Set only during a start: a server that is started later must not inherit them.
START_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the CPU platform would run the model in a separate process
    "VLLM_CONFIGURE_LOGGING": "0",  # vLLM would log to Coldproof's standard output
}
# They come first, so that the user's flags override them. Without async scheduling, a step is complete when it returns.
FIRST_FLAGS = ("--no-async-scheduling", "--no-use-tqdm-on-load")
TRITON = "HAS_TRITON"
SLOW_SOURCES = ("disk", "p2p")  # of vLLM's CacheHitSource

_running: set[int] = set()


class StatCounters:
    """Receives vLLM's statistics after each step and adds up the counters that its Prometheus logger exports."""

    def __init__(self) -> None:
        self.queried_tokens = self.hit_tokens = 0
        self.external_queried_tokens = self.external_hit_tokens = self.resumed_hit_tokens = self.failed_loads = 0
        self.slow_hit_tokens = 0
        self.drafted_tokens = self.accepted_tokens = 0
        self._last: Any = None

    def record(self, scheduler_stats: Any, *_: Any, **__: Any) -> None:
        """Add the statistics of a step, once. As in the server's counter, lookups after a preemption do not count."""
        if scheduler_stats is None or scheduler_stats is self._last:
            return
        self._last = scheduler_stats
        self.queried_tokens += scheduler_stats.prefix_cache_stats.queries
        self.hit_tokens += scheduler_stats.prefix_cache_stats.hits
        external = scheduler_stats.connector_prefix_cache_stats
        if external is not None:
            self.external_queried_tokens += external.queries
            self.external_hit_tokens += external.hits
            self.resumed_hit_tokens += external.preempted_hits
            sources = getattr(external, "hits_by_source", {})  # releases before 0.32 have none
            self.slow_hit_tokens += sum(tokens for source, tokens in sources.items() if source.value in SLOW_SOURCES)
        self.failed_loads += (scheduler_stats.kv_connector_stats or {}).get(FAILED_LOADS, 0)
        drafts = scheduler_stats.spec_decoding_stats
        if drafts is not None:
            self.drafted_tokens += drafts.num_draft_tokens
            self.accepted_tokens += drafts.num_accepted_tokens

    def nothing(self, *_: Any, **__: Any) -> None:
        """Ignore the other calls of vLLM's interface for statistics."""

    log = log_engine_initialized = record_sleep_state = nothing


class InprocEngineParts(msgspec.Struct, frozen=True):
    """A started engine. `arguments`: the parsed flags of the server; `events`: None if KV events are disabled."""

    engine: Any
    arguments: Any
    stats: StatCounters
    log: logging.Handler
    events: EventRecorder | None = None
    own_globals: OwnGlobals = msgspec.field(default_factory=OwnGlobals)
    tier_server: EngineProcess | None = None  # of the second tier

    @property
    def core(self) -> Any:
        """Return vLLM's EngineCore, which owns the scheduler and the model."""
        return self.engine.engine_core.engine_core


def build(options: VllmOptions) -> InprocEngineParts:
    """Start an engine with the flags that the server would get. Raises EngineStartError."""
    check_model(options.model)
    if importlib.util.find_spec("vllm") is None:
        raise EngineStartError(f"vLLM is not installed for {sys.executable}: see README.md for how to get it")
    options.log.parent.mkdir(parents=True, exist_ok=True)
    log = logging.FileHandler(options.log, mode="w", encoding="utf-8")
    log.setFormatter(logging.Formatter("%(levelname)s %(asctime)s [%(name)s:%(lineno)d] %(message)s"))
    own_globals = OwnGlobals()
    with contextlib.ExitStack() as failed_start:
        failed_start.callback(log.close)
        try:
            with LOCK, start_environment(options.environment, exact=options.exact), log_to(log), own_globals.active():
                LOGGER.setLevel(logging.INFO)
                LOGGER.propagate = False
                arguments, stats = parse_flags(options), StatCounters()
                share_process()
                limit_threads()
                tier_server = started_server(options)
                if tier_server is not None:
                    failed_start.callback(tier_server.stop)
                engine = make_engine(arguments, stats)
                _running.add(id(engine))
                recorder = event_recorder(options)
                parts = InprocEngineParts(engine, arguments, stats, log, recorder, own_globals, tier_server)
                if parts.events is not None:
                    parts.core.scheduler.kv_event_publisher = parts.events
        except EngineStartError:
            raise
        except Exception as problem:
            reasons = (numbers_hint(flags(options)), unknown_release() or described(problem))
            raise EngineStartError(
                f"the engine did not start: {'; '.join(filter(None, reasons))}; log: {options.log}"
            ) from problem
        failed_start.pop_all()
    return parts


def described(problem: Exception) -> str:
    """Return what an exception says; of an assertion, which says nothing, the line that failed."""
    if str(problem):
        return str(problem)
    at = traceback.extract_tb(problem.__traceback__)[-1]
    return f"{type(problem).__name__} in {Path(at.filename).name}, line {at.lineno}: {at.line}"


def unknown_release() -> str:
    """Return what this release does not have, in one line; "" if it has everything that the adapter needs."""
    missing = missing_internals()
    return f"vLLM {vllm_module('version').__version__} does not have {', '.join(missing)}" if missing else ""


def event_recorder(options: VllmOptions) -> EventRecorder | None:
    """Return what takes the events of an engine: vLLM's own publisher, if the engine may be one of several lives."""
    if not options.events:
        return None
    return EventRecorder() if options.storage is None else PublishedBatches(options.storage)


def flags(options: VllmOptions) -> list[str]:
    """Return the server's flags, preceded by FIRST_FLAGS."""
    events = kv_events.FLAGS if options.events else ()
    return [*FIRST_FLAGS, *server_command(options, 0, events)[3:]]  # without `python -m MODULE`


def parse_flags(options: VllmOptions) -> Any:
    """Return the flags as parsed by the server's own parser. Raises EngineStartError for invalid flags."""

    def refuse(message: str) -> None:
        raise EngineStartError(f"vLLM refuses its flags: {message}")

    parser = vllm_module("utils.argparse_utils").FlexibleArgumentParser()
    parser.error = refuse
    return vllm_module(find_module(*PARSERS) or PARSERS[0]).make_arg_parser(parser).parse_args(flags(options))


def make_engine(arguments: Any, stats: StatCounters) -> Any:
    """Create an engine that runs only when `step` is called."""
    engine_args = vllm_module("engine.arg_utils").EngineArgs.from_cli_args(arguments)
    context = vllm_module("usage.usage_lib").UsageContext.OPENAI_API_SERVER  # defaults depend on it
    config = engine_args.create_engine_config(context)
    if arguments.mamba_cache_mode not in (None, "none"):  # from 0.33 on, vLLM takes it from the model's class alone
        config.cache_config.mamba_cache_mode = arguments.mamba_cache_mode
    if os.environ.get(score_noise.VARIABLE):
        install_noise()
    if weight_transfer_config(config) is not None:
        register_transfer_backend()
    engine = vllm_module("v1.engine.llm_engine").LLMEngine(
        config,
        executor_class=executor_class(config),
        log_stats=True,
        usage_context=context,
        stat_loggers=[lambda _config, _index: stats],
        multiprocess_mode=False,
    )
    # Its own loggers, behind ours, take a tenth of each step, and nobody reads them here.
    manager = engine.logger_manager
    manager.stat_loggers = manager.stat_loggers[:1]
    # vLLM frees requests that are aborted together in the order of a set of random names. This order decides later
    # evictions, so that a run would not repeat.
    client = engine.engine_core
    abort_all = client.abort_requests
    client.abort_requests = lambda names: [abort_all([name]) for name in names]
    record_every_step(engine, vllm_module("version").__version__, stats.record)
    return engine


def shut_down(parts: InprocEngineParts) -> None:
    """Stop an engine and free its memory. The engines share a process group, so only the last one may end it."""
    with LOCK, log_to(parts.log), parts.own_globals.active():
        _running.discard(id(parts.engine))
        with process_group_kept(GARBAGE.collect) if _running else contextlib.nullcontext():
            parts.engine.engine_core.shutdown()
            parts.engine.renderer.shutdown()
    if parts.tier_server is not None:
        parts.tier_server.stop()
    parts.log.close()


@contextlib.contextmanager
def log_to(handler: logging.Handler) -> Iterator[None]:
    """Send vLLM's log in this context to this handler only. Each engine has its own handler."""
    before, LOGGER.handlers = LOGGER.handlers, [handler]
    try:
        yield
    finally:
        LOGGER.handlers = before


@contextlib.contextmanager
def start_environment(cell: Variables = (), *, exact: bool = False) -> Iterator[None]:
    """Set vLLM's environment for a start. After it, restore variables, exception hook and the state of `random`.

    `cell`: the variables of the engine's cell.
    """
    for name, value in added_environment(exact=exact).items():
        os.environ.setdefault(name, value)
    before, state, hook = current_environment(), random.getstate(), sys.excepthook
    os.environ.update(START_ENVIRONMENT | dict(cell))
    forget_environment()
    try:
        with triton_for_runner_v2():
            yield
    finally:
        for name in list(os.environ):
            if name not in before:
                os.environ.pop(name, None)
        os.environ.update(before)
        random.setstate(state)
        sys.excepthook = hook


def forget_environment() -> None:
    """Let vLLM read the environment again. An engine that has started keeps all variables for the next ones."""
    envs = sys.modules.get("vllm.envs")
    if envs is not None and hasattr(envs, "disable_envs_cache"):
        envs.disable_envs_cache()


@contextlib.contextmanager
def triton_for_runner_v2() -> Iterator[None]:
    """Let vLLM choose model runner V2 in this context if the environment asks for it, also without Triton.

    vLLM's own worker needs Triton for it. The fingerprint worker does not, and only the scheduler's side is different.
    """
    module = vllm_module("config.vllm") if dict(RUNNER_V2).items() <= current_environment().items() else None
    before = getattr(module, TRITON, None)
    if before is not None:
        setattr(module, TRITON, True)
    try:
        yield
    finally:
        if before is not None:
            setattr(module, TRITON, before)
