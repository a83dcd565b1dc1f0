"""Which releases a run is about: a list, or the range between two of those that pip finds."""

from __future__ import annotations

import subprocess
import sys

from packaging.version import InvalidVersion, Version

from coldproof.harness.options import UsageError

RANGE = ".."
FOUND = "Available versions:"
PIP_SECONDS = 120


def chosen_releases(text: str, package: str) -> list[str]:
    """Return the releases that `text` names, oldest first: `0.28.0,0.30.0`, or `0.28..0.31` for all between.

    Raises UsageError for an invalid version, or if there is no release.
    """
    if RANGE not in text:
        named = dict.fromkeys(word.strip() for word in text.split(",") if word.strip())
        if not named:
            raise UsageError(f"--releases {text!r} names no release; use for example 0.30.0,0.31.0 or 0.28..0.31")
        return sorted(named, key=version)
    first, last = (version(word) for word in text.split(RANGE, 1))
    between = [one for one in available(package) if first <= version(one) <= last]
    if not between:
        raise UsageError(f"pip finds no release of {package} between {first} and {last}")
    return sorted(between, key=version)


def is_among(release: str, text: str) -> bool:
    """Return whether a release is among those that `text` names, as in `chosen_releases`. Raises UsageError."""
    if RANGE in text:
        first, last = (version(word) for word in text.split(RANGE, 1))
        return first <= version(release) <= last
    return version(release) in [version(word) for word in text.split(",")]


def version(text: str) -> Version:
    """Return a version that can be compared. Raises UsageError."""
    try:
        return Version(text.strip())
    except InvalidVersion as problem:
        raise UsageError(f"{text.strip()!r} is no version; use for example 0.30.0, or 0.28..0.31") from problem


def available(package: str) -> list[str]:
    """Return the releases of a distribution that pip finds for this machine. Raises UsageError if pip cannot tell."""
    command = [sys.executable, "-m", "pip", "index", "versions", package]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=PIP_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError) as problem:
        raise UsageError(f"pip cannot list the releases of {package}; name them one by one ({problem})") from problem
    lines = [line.removeprefix(FOUND) for line in told.splitlines() if line.startswith(FOUND)]
    return [word.strip() for line in lines for word in line.split(",")]
