"""Tools for faults: access to parts of vLLM, and a function that wraps them.

vLLM is imported only when a fault is injected. A fault calls `acted` when it makes the engine behave differently. If a
fault never acted, a run that did not detect it shows nothing.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coldproof.adapters.spec.fault import Patch

MARKERS_VARIABLE = "COLDPROOF_FAULT_MARKS"  # the folder in which engine processes create their marker files
actions: Counter[str] = Counter()


def module(name: str) -> Any:
    """Return a module of vLLM. It is untyped: with an import statement, mypy would check all of torch."""
    return importlib.import_module(f"vllm.{name}")


def manager() -> Any:
    """Return the class that looks up, allocates and frees the blocks of requests."""
    return module("v1.core.kv_cache_manager").KVCacheManager


def pool() -> Any:
    """Return the class that owns the blocks and the index of their hashes."""
    return module("v1.core.block_pool").BlockPool


def scheduler() -> Any:
    """Return the class that decides which requests run."""
    return module("v1.core.sched.scheduler").Scheduler


def around(patch: Patch, owner: Any, name: str, instead: Callable[..., Any]) -> None:
    """Replace a function or method: calls go to `instead(original, *args, **kwargs)`."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return instead(original, *args, **kwargs)

    patch.setattr(owner, name, call)


def acted() -> None:
    """Record that the fault has just changed something. The first call creates a marker file for the run that injected
    it.
    """
    actions["acted"] += 1
    if actions["acted"] == 1:
        create_marker("acted")


def create_marker(kind: str) -> None:
    """Create a marker file of a kind for this process, if the run asked for marker files."""
    folder = os.environ.get(MARKERS_VARIABLE)
    if folder:
        Path(folder, f"{kind}-{os.getpid()}").touch()


def blocks_of(this: Any, request: Any) -> list[Any]:
    """Return the blocks that a request holds in the first group."""
    return list(this.coordinator.get_blocks(request.request_id)[0])


def is_waiting(request: Any) -> bool:
    """Return whether a request is not running yet, or is preempted."""
    return request.status.name in ("WAITING", "PREEMPTED")
