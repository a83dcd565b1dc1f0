"""Facts about the machine for the report. Never host, user or folder names."""

from __future__ import annotations

import importlib.metadata
import os
import platform

import psutil

from coldproof.adapters.registry import ENGINES
from coldproof.harness.release.run.sources import ROOT, git

PACKAGES = ("torch", "hypothesis", "pytest")  # in addition to those of the engines


def coldproof_version() -> str:
    """Return the installed version, or 'not installed' for a checkout that was never installed."""
    try:
        return importlib.metadata.version("coldproof")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def environment() -> dict[str, str]:
    """Return the facts by name: system, CPUs, memory, commit, package versions."""
    facts = {
        "os": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cpus": str(os.cpu_count()),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "python": platform.python_version(),
        "coldproof commit": commit(),
    }
    of_engines = (package for spec in ENGINES.values() for package in spec.packages)
    for package in dict.fromkeys((*of_engines, *PACKAGES)):
        try:
            facts[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return facts


def commit() -> str:
    """Return the suite's commit, marked when files differ from it; 'unknown' where git does not keep the sources."""
    described = git(ROOT, "describe", "--always", "--dirty") if git(ROOT, "ls-files", "harness/__init__.py") else ""
    return described or "unknown"
