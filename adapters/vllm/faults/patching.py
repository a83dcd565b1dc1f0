"""Tools for faults: access to parts of vLLM, and a function that wraps them.

vLLM is imported only when a fault is injected. A fault calls `acted` when it makes the engine behave differently. If a
fault never acted, a run that did not detect it shows nothing.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
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


def coordinator(kind: str = "") -> Any:
    """Return the class that looks up prefixes: of one group ("Unitary"), of several ("Hybrid"), or of both ("")."""
    return getattr(module("v1.core.kv_cache_coordinator"), f"{kind}KVCacheCoordinator")


def scheduler() -> Any:
    """Return the class that decides which requests run."""
    return module("v1.core.sched.scheduler").Scheduler


def around(patch: Patch, owner: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    """Return a decorator for the replacement of a function or method. Calls go to `it(original, *args, **kwargs)`."""

    def replace(instead: Callable[..., Any]) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            return instead(original, *args, **kwargs)

        patch.setattr(owner, name, call)

    return replace


def after_lookup(patch: Patch) -> Callable[[Callable[[Any, Any, Any, int], None]], None]:
    """Return a decorator. The function is called with (manager, request, blocks, cached tokens) after each lookup."""

    def observe(do: Callable[[Any, Any, Any, int], None]) -> None:
        @around(patch, manager(), "get_computed_blocks")
        def found(original: Any, this: Any, request: Any) -> Any:
            blocks, count, boundary = original(this, request)
            do(this, request, blocks, count)
            return blocks, count, boundary

    return observe


def acted() -> None:
    """Record that the fault has just changed something. The first call creates a marker file for the run."""
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


def find_requests(this: Any, names: str | Iterable[str] | None) -> list[Any]:
    """Return the requests of a scheduler with one or several names. It may know only some of them."""
    wanted = [names] if isinstance(names, str) else names or ()
    return [this.requests[name] for name in wanted if name in this.requests]


def name_and_path(lora: Any) -> tuple[str, str]:
    """Return the name and the path of an adapter."""
    return lora.lora_name, lora.lora_path


@contextlib.contextmanager
def override(this: Any, name: str, value: Any) -> Iterator[None]:
    """Change an attribute in this context."""
    before = getattr(this, name)
    setattr(this, name, value)
    try:
        yield
    finally:
        setattr(this, name, before)


def is_waiting(request: Any) -> bool:
    """Return whether a request is not running yet, or is preempted."""
    return request.status.name in ("WAITING", "PREEMPTED")
