"""Registers a function of Coldproof as a general plugin of the vLLM engines of one run.

The entry point is in a folder of the run that only its engines have on their import path.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from coldproof.adapters.common.process import python_path


@contextlib.contextmanager
def register_plugin(folder: Path, name: str, function: str, variables: dict[str, str]) -> Iterator[None]:
    """Register `function` (`module:name`) in this context: every vLLM that starts in it calls the function.

    `variables` are set in the environment of these engines.
    """
    info = folder / f"{name}-1.dist-info"
    info.mkdir(parents=True)
    (info / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{name} = {function}\n")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1\n")
    before = dict(os.environ)
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
