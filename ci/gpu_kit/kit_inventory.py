"""What a machine has: its Python, packages, C library, processors and cards. It is read, and nothing is changed."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from typing import Any

from kit_plan import normal

CARD = ("name", "driver_version", "memory.total", "compute_cap")


def inventory() -> dict[str, Any]:
    """Return what this machine has, as plain data."""
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "machine": platform.machine(),
        "libc": platform.libc_ver()[1],
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "cards": cards(),
        "packages": packages(),
    }


def packages() -> dict[str, str]:
    """Return the installed distributions, by normalised name."""
    found: dict[str, str] = {}
    for one in importlib.metadata.distributions():
        name = one.metadata["Name"] if one.metadata else None
        if name:
            found.setdefault(normal(name), one.version)  # the first one on the path is imported
    return dict(sorted(found.items()))


def cards() -> list[dict[str, str]]:
    """Return the facts about the NVIDIA cards; empty if there are none."""
    words = ["nvidia-smi", f"--query-gpu={','.join(CARD)}", "--format=csv,noheader"]
    try:
        said = subprocess.run(words, capture_output=True, text=True, check=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [line.split(", ") for line in said.splitlines()]
    return [dict(zip(CARD, row, strict=True)) for row in rows if len(row) == len(CARD)]
