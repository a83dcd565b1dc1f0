"""Builds vLLM's engine in this process, and takes it down again.

vLLM is imported here only, and only when an engine is started. Its state is global in places (forward context, process
group, logger), so whatever touches it holds `LOCK`.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import logging
import os
import random
import sys
import threading
from collections.abc import Iterator
from typing import Any

import msgspec

from adapters import inproc_events, noise
from adapters.base import EngineStartError
from adapters.inproc_events import Mailbox
from adapters.tiers import FAILED_LOADS
from adapters.vllm import VllmOptions, added_environment, check_model, server_command

LOCK = threading.RLock()
LOGGER = logging.getLogger("vllm")
# For the time of a start only: a server spawned later must not inherit them.
START_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the CPU platform would give the model a process of its own
    "VLLM_CONFIGURE_LOGGING": "0",  # to our standard output
}
# First, so that the user's flags win. One batch at a time: what a step did is known when it returns.
FIRST_FLAGS = ("--no-async-scheduling", "--no-use-tqdm-on-load")
PARSERS = ("entrypoints.launchers.cli_args", "entrypoints.openai.cli_args")  # it moved in 0.2x

_living: set[int] = set()


class Counts:
    """Receives vLLM's statistics after each step, as its Prometheus logger does, and counts what that one counts."""

    def __init__(self) -> None:
        self.queried_tokens = self.hit_tokens = 0
        self.external_queried_tokens = self.external_hit_tokens = self.resumed_hit_tokens = self.failed_loads = 0

    def record(self, scheduler_stats: Any, *_: Any, **__: Any) -> None:
        """One step's. Tokens looked up again after a preemption are not in `queries`, nor in the server's counter."""
        if scheduler_stats is None:
            return
        self.queried_tokens += scheduler_stats.prefix_cache_stats.queries
        self.hit_tokens += scheduler_stats.prefix_cache_stats.hits
        external = scheduler_stats.connector_prefix_cache_stats
        if external is not None:
            self.external_queried_tokens += external.queries
            self.external_hit_tokens += external.hits
            self.resumed_hit_tokens += external.preempted_hits
        self.failed_loads += (scheduler_stats.kv_connector_stats or {}).get(FAILED_LOADS, 0)

    def nothing(self, *_: Any, **__: Any) -> None:
        """The rest of vLLM's interface for statistics."""

    log = log_engine_initialized = record_sleep_state = nothing


class Built(msgspec.Struct, frozen=True):
    """An engine, the server's arguments that it was made of, its counts and its log; its KV events if it tells them."""

    engine: Any
    arguments: Any
    counts: Counts
    log: logging.Handler
    mail: Mailbox | None = None

    @property
    def core(self) -> Any:
        """The scheduler's and the model's owner."""
        return self.engine.engine_core.engine_core


def vllm_module(name: str) -> Any:
    """A module of vLLM. Untyped: mypy would follow an import statement into all of torch."""
    return importlib.import_module(f"vllm.{name}")


def has_module(name: str) -> bool:
    """Whether this vLLM has a module of that name."""
    try:
        return importlib.util.find_spec(f"vllm.{name}") is not None
    except ModuleNotFoundError:  # not even the package that it would be in
        return False


def build(options: VllmOptions) -> Built:
    """Make an engine of the flags that the server would get. Raises EngineStartError."""
    check_model(options.model)
    if importlib.util.find_spec("vllm") is None:
        raise EngineStartError(f"vLLM is not installed for {sys.executable}: see README.md for how to get it")
    options.log.parent.mkdir(parents=True, exist_ok=True)
    log = logging.FileHandler(options.log, mode="w", encoding="utf-8")
    log.setFormatter(logging.Formatter("%(levelname)s %(asctime)s [%(name)s:%(lineno)d] %(message)s"))
    try:
        with LOCK, start_environment(), logged_to(log):
            LOGGER.setLevel(logging.INFO)
            LOGGER.propagate = False
            arguments, counts = parse(options), Counts()
            if not _living:
                gc.freeze()  # starting and ending an engine collects garbage seven times; what is imported is none
            engine = make_engine(arguments, counts)
            _living.add(id(engine))
            return Built(engine, arguments, counts, log, mailbox(engine) if options.events else None)
    except EngineStartError:
        log.close()
        raise
    except Exception as problem:
        log.close()
        raise EngineStartError(f"the engine did not start: {problem}; its log: {options.log}") from problem


def flags(options: VllmOptions) -> list[str]:
    """The server's flags, and ours before them."""
    events = inproc_events.FLAGS if options.events else ()
    return [*FIRST_FLAGS, *server_command(options, 0, events)[3:]]  # without `python -m MODULE`


def parse(options: VllmOptions) -> Any:
    """The server's arguments, read by the server's own parser. Raises EngineStartError for one that it refuses."""

    def refuse(message: str) -> None:
        raise EngineStartError(f"vLLM refuses its flags: {message}")

    for name in PARSERS:
        if has_module(name):
            parser = vllm_module("utils.argparse_utils").FlexibleArgumentParser()
            parser.error = refuse
            return vllm_module(name).make_arg_parser(parser).parse_args(flags(options))
    raise EngineStartError("this vLLM keeps its flags where Coldproof does not find them")


def make_engine(arguments: Any, counts: Counts) -> Any:
    """An engine that runs only when `step` is called."""
    engine_args = vllm_module("engine.arg_utils").EngineArgs.from_cli_args(arguments)
    context = vllm_module("usage.usage_lib").UsageContext.OPENAI_API_SERVER  # defaults depend on it
    config = engine_args.create_engine_config(context)
    if os.environ.get(noise.VARIABLE):
        noise.plant()
    engine = vllm_module("v1.engine.llm_engine").LLMEngine(
        config,
        executor_class=vllm_module("v1.executor").Executor.get_class(config),
        log_stats=True,
        usage_context=context,
        stat_loggers=[lambda _config, _index: counts],
        multiprocess_mode=False,
    )
    # vLLM frees what is aborted together in the order of a set of random names, which later evictions go by.
    client = engine.engine_core
    abort_all = client.abort_requests
    client.abort_requests = lambda names: [abort_all([name]) for name in names]
    return engine


def mailbox(engine: Any) -> Mailbox:
    """Have an engine's events come to us instead of to nobody."""
    mail = Mailbox()
    engine.engine_core.engine_core.scheduler.kv_event_publisher = mail
    return mail


def take_down(built: Built) -> None:
    """End an engine and free its memory. The process group is shared, so only the last engine may end it."""
    with LOCK, logged_to(built.log):
        _living.discard(id(built.engine))
        module = vllm_module("v1.engine.core")
        end_group = module.cleanup_dist_env_and_memory
        try:
            if _living:
                module.cleanup_dist_env_and_memory = gc.collect
            built.engine.engine_core.shutdown()
            built.engine.renderer.shutdown()
        finally:
            module.cleanup_dist_env_and_memory = end_group
    built.log.close()


@contextlib.contextmanager
def logged_to(handler: logging.Handler) -> Iterator[None]:
    """What vLLM logs goes to this handler only. Each engine has its own, and one of them runs at a time."""
    before, LOGGER.handlers = LOGGER.handlers, [handler]
    try:
        yield
    finally:
        LOGGER.handlers = before


@contextlib.contextmanager
def start_environment() -> Iterator[None]:
    """The environment that vLLM starts in. What it changes is undone: variables, exception hook, `random`'s seed."""
    for name, value in added_environment().items():
        os.environ.setdefault(name, value)
    before, state, hook = dict(os.environ), random.getstate(), sys.excepthook
    os.environ.update(START_ENVIRONMENT)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
        random.setstate(state)
        sys.excepthook = hook
