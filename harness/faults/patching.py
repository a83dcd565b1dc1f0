"""What faults are made of: parts of vLLM, and a way to put other code around them.

vLLM is imported when a fault is planted and not before. `acted` is for the moment at which a fault makes the engine
behave differently: a fault that never acted was not survived, it was never there.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

MARKS = "COLDPROOF_FAULT_MARKS"  # the folder in which engine processes leave their marks
actions: Counter[str] = Counter()


class Patch(Protocol):
    """Whatever sets attributes; pytest's MonkeyPatch takes them back, an engine's process keeps them."""

    def setattr(self, target: Any, name: str, value: Any, /) -> None:
        """Have `target.name` be `value`."""


def module(name: str) -> Any:
    """A module of vLLM. Untyped: mypy would follow an import statement into all of torch."""
    return importlib.import_module(f"vllm.{name}")


def manager() -> Any:
    """The class that looks blocks up, allocates and frees them for requests."""
    return module("v1.core.kv_cache_manager").KVCacheManager


def pool() -> Any:
    """The class that owns the blocks and the index of their hashes."""
    return module("v1.core.block_pool").BlockPool


def scheduler() -> Any:
    """The class that decides who runs."""
    return module("v1.core.sched.scheduler").Scheduler


def around(patch: Patch, owner: Any, name: str, instead: Callable[..., Any]) -> None:
    """Have `instead(original, *arguments)` called in place of a function or method."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(*arguments: Any, **named: Any) -> Any:
        return instead(original, *arguments, **named)

    patch.setattr(owner, name, call)


def acted() -> None:
    """A fault has just made a difference. The first time leaves a mark for the run that injected it."""
    actions["acted"] += 1
    if actions["acted"] == 1:
        mark("acted")


def mark(kind: str) -> None:
    """Leave a file that says what happened in this process, where a run asked for it."""
    folder = os.environ.get(MARKS)
    if folder:
        Path(folder, f"{kind}-{os.getpid()}").touch()


def blocks_of(held: Any, request: Any) -> list[Any]:
    """The blocks that a request holds in the first group."""
    return list(held.coordinator.get_blocks(request.request_id)[0])


def waits(request: Any) -> bool:
    """Whether a request is not running yet, or not any more."""
    return request.status.name in ("WAITING", "PREEMPTED")
