"""Registers one of our functions as a general plugin of the vLLMs that start inside, and of no other.

The entry point lies in a folder of the run's own, on the path of its engines only.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


@contextlib.contextmanager
def registered(folder: Path, name: str, function: str, variables: dict[str, str]) -> Iterator[None]:
    """Have `function`, as `module:name`, called by every vLLM that starts inside; it finds `variables` set."""
    info = folder / f"{name}-1.dist-info"
    info.mkdir(parents=True)
    (info / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{name} = {function}\n")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1\n")
    inherited = [path for path in (os.environ.get("PYTHONPATH"),) if path]
    before = dict(os.environ)
    os.environ |= variables
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), str(ROOT), *inherited])
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for key in (*variables, "PYTHONPATH"):
            os.environ.pop(key, None)
            if key in before:
                os.environ[key] = before[key]
