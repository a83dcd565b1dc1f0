"""What vLLM does to the process in which it starts, once for all engines of this process."""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import os
import time
import types
from typing import Any

from coldproof.adapters.vllm.releases import is_cpu_build

COLLECTED_FOR = 2.0  # seconds between two collections, at least
KERNELS = "register_triton_kernel_overrides"


def vllm_module(name: str) -> Any:
    """Return a module of vLLM. It is untyped, because mypy would follow an import statement into all of torch."""
    return importlib.import_module(f"vllm.{name}")


class Garbage:
    """Collects garbage when engines stop, once for those that stop together: it looks at all that a run remembers."""

    def __init__(self) -> None:
        self.next = 0.0  # when a collection is due again

    def collect(self) -> None:
        """Collect garbage, unless that was done a moment ago."""
        if time.monotonic() >= self.next:
            gc.collect()
            self.next = time.monotonic() + COLLECTED_FOR


GARBAGE = Garbage()


@functools.cache
def share_process() -> None:
    """Keep vLLM from treating this process as its own.

    A start collects garbage and freezes all objects of the process, and a stop thaws them and collects again, among all
    that was ever imported. A start also searches all modules for kernels to replace. Here, the imported modules stay
    frozen, and the kernels are replaced once.
    """
    core = vllm_module("v1.engine.core")
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)  # else Triton prints at the end that its objects were leaked
    core.freeze_gc_heap = nothing
    for module in (core, vllm_module("distributed.parallel_state")):
        module.gc = types.SimpleNamespace(collect=GARBAGE.collect, freeze=nothing, unfreeze=nothing)
    replace_kernels()


def replace_kernels() -> None:
    """Replace vLLM's kernels before an engine starts, and never again.

    vLLM 0.32.0 looks for them among all objects of all modules and fails at those of llvmlite, which LMCache's
    connector imports: `'_lib_fn_wrapper' object has no attribute 'get'` (triton_utils/dispatcher.py).
    """
    platform = vllm_module("platforms").current_platform
    if callable(replace := getattr(platform, KERNELS, None)):  # before 0.31 there is nothing to replace
        replace()
        setattr(platform, KERNELS, nothing)


def limit_threads() -> None:
    """Apply OMP_NUM_THREADS to a process that imported torch before the variable was set: torch reads it only then."""
    if is_cpu_build():
        torch: Any = importlib.import_module("torch")
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"].partition(",")[0]))  # a list is for nested regions


def nothing() -> None:
    """Do nothing."""
