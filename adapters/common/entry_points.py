"""Entry points that only the engines of one run have, because the folder with them is only on their import path.

So an installed Coldproof never changes other engines.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from coldproof.adapters.common.environment import current_environment
from coldproof.adapters.common.process import python_path


def write_entry_point(folder: Path, group: str, name: str, function: str) -> None:
    """Write an entry point of an engine's group of plugins, `function` (`module:name`), to a folder."""
    info = folder / f"{name}-1.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {function}\n")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1\n")


@contextlib.contextmanager
def entry_point(folder: Path, group: str, name: str, function: str, variables: dict[str, str]) -> Iterator[None]:
    """Register `function` (`module:name`) in this context: every engine that starts in it calls the function.

    `variables` are set in the environment of these engines.
    """
    write_entry_point(folder, group, name, function)
    before = current_environment()
    os.environ |= variables
    os.environ["PYTHONPATH"] = python_path(folder)  # the folder contains only the entry point
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for key in (*variables, "PYTHONPATH"):
            os.environ.pop(key, None)
            if key in before:
                os.environ[key] = before[key]
