"""Tools with which faults change functions and methods of vLLM.

A fault calls `acted` when it makes the engine behave differently. If a fault never acted, a run that did not detect it
shows nothing.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from coldproof.adapters.spec.fault import Patch
from coldproof.adapters.vllm.faults.engine_parts import manager

MARKERS_VARIABLE = "COLDPROOF_FAULT_MARKS"  # the folder in which engine processes create their marker files
TIGHT = ("tight",)  # the cell with a small pool, for faults that act only when blocks are scarce
Kept = TypeVar("Kept")
actions: Counter[str] = Counter()


def around(patch: Patch, owner: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    """Return a decorator for the replacement of a function or method. Calls go to `it(original, *args, **kwargs)`."""

    def replace(instead: Callable[..., Any]) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            return instead(original, *args, **kwargs)

        patch.setattr(owner, name, call)

    return replace


def before(patch: Patch, owner: Any, name: str) -> Callable[[Callable[..., None]], None]:
    """Return a decorator for what happens before a function or method. It is called with the same arguments."""

    def extend(do: Callable[..., None]) -> None:
        @around(patch, owner, name)
        def call(original: Any, *args: Any, **kwargs: Any) -> Any:
            do(*args, **kwargs)
            return original(*args, **kwargs)

    return extend


def after(patch: Patch, owner: Any, name: str) -> Callable[[Callable[..., None]], None]:
    """Return a decorator for what happens after one. It is called with the result and the same arguments."""

    def extend(do: Callable[..., None]) -> None:
        @around(patch, owner, name)
        def call(original: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            do(result, *args, **kwargs)
            return result

    return extend


def after_lookup(patch: Patch) -> Callable[[Callable[[Any, Any, Any, int], None]], None]:
    """Return a decorator for what happens after a lookup. It is called with (manager, request, blocks, tokens)."""

    def extend(do: Callable[[Any, Any, Any, int], None]) -> None:
        @after(patch, manager(), "get_computed_blocks")
        def found(result: Any, this: Any, request: Any) -> None:
            do(this, request, *result[:2])

    return extend


def state_of(part: Any, name: str, make: Callable[[], Kept]) -> Kept:
    """Return what a fault keeps under a name for one engine, as an attribute of a part of it. `make` makes the first.

    One process may have several engines, so a fault that depends on an engine's life keeps nothing elsewhere.
    """
    if not hasattr(part, name):
        setattr(part, name, make())
    kept: Kept = getattr(part, name)
    return kept


def count_up(part: Any, name: str) -> int:
    """Count one more event in the life of an engine, at a part of it, and return the number of such events."""
    number: int = getattr(part, name, 0) + 1
    setattr(part, name, number)
    return number


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


@contextlib.contextmanager
def override(this: Any, name: str, value: Any) -> Iterator[None]:
    """Change an attribute in this context."""
    original = getattr(this, name)
    setattr(this, name, value)
    try:
        yield
    finally:
        setattr(this, name, original)
