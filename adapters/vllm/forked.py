"""vLLM in forks: imports it once, and starts servers in processes that have imported it.

Only for the CPU build: there a start is little else than three imports, and nothing that a fork would break exists yet.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import multiprocessing
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from coldproof.adapters.vllm.fingerprint.topology import WORKER
from coldproof.adapters.vllm.inproc.process import replace_kernels, vllm_module
from coldproof.adapters.vllm.inproc.setup import start_environment, triton_for_runner_v2
from coldproof.adapters.vllm.releases import PARSERS, is_cpu_build

MODULES = (
    *PARSERS,
    "engine.arg_utils",
    "entrypoints.launchers.api_server.entry",
    "model_executor.models.registry",
    "renderers.registry",
    "tokenizers",
    "transformers_utils.config",
    "usage.usage_lib",
    "v1.core.sched.scheduler",
    "v1.engine.async_llm",
    "v1.engine.core",
    "v1.engine.llm_engine",
    "v1.executor.multiproc_executor",
    "v1.executor.uniproc_executor",
    "v1.structured_output",
    "v1.worker.cpu_worker",
)
POLL_SECONDS = 0.0002  # a step takes some milliseconds


def preload() -> None:
    """Import vLLM without starting an engine, a thread or a process group. Not on a GPU: CUDA and forks do not mix."""
    if importlib.util.find_spec("vllm") is None or not is_cpu_build():
        return
    with contextlib.suppress(ImportError):  # it names processes, but not if the environment was changed before
        importlib.import_module("setproctitle").getproctitle()
    with start_environment():
        for name in MODULES:
            with contextlib.suppress(ImportError):  # another version has it elsewhere; the run imports it then
                vllm_module(name)
        with contextlib.suppress(ImportError):
            importlib.import_module(WORKER.rpartition(".")[0])
        replace_kernels()


def serve(words: list[str]) -> None:
    """Run `-m MODULE ARGUMENTS` in this process, whose engine core and worker are forked from it."""
    _, module, *arguments = words
    multiprocessing.get_context = forking(multiprocessing.get_context)
    os.register_at_fork(after_in_child=default_signals)
    # After a message, the worker polls for the next one without a pause for a second, which takes half of two cores.
    vllm_module("distributed.device_communicators.shm_broadcast").sched_yield = lambda: time.sleep(POLL_SECONDS)
    importlib.reload(vllm_module("logger"))  # at the preload, logging was not configured
    sys.argv = [module, *arguments]
    with triton_for_runner_v2() if WORKER in arguments else contextlib.nullcontext():
        runpy.run_module(module, run_name="__main__", alter_sys=True)


def default_signals() -> None:
    """Give a forked process the signal handlers of a spawned one: the server's would let it finish its requests."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def forking(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return multiprocessing.get_context with fork instead of spawn.

    vLLM spawns on a CPU so that each worker gets its own OpenMP threads, and here it has one (CPU_ENVIRONMENT).
    """

    def get_context(method: str | None = None) -> Any:
        fork = method == "spawn" and os.environ.get("OMP_NUM_THREADS") == "1"
        return original("fork" if fork else method)

    return get_context
