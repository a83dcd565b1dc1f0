"""Releases are given one by one or as a range, and are always sorted from the oldest."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from coldproof.harness.engine_releases import versions
from coldproof.harness.engine_releases.versions import available, chosen_releases, is_among
from coldproof.harness.options import UsageError

PIP_OUTPUT = "tiny (0.10.0)\nAvailable versions: 0.10.0, 0.9.1, 0.9.0, 0.2.0\n  INSTALLED: 0.9.1\n"


def pip_says(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Replace pip by this program."""
    run = subprocess.run
    monkeypatch.setattr(
        versions.subprocess,
        "run",
        lambda *_, **how: run([sys.executable, "-c", code], **how),  # type: ignore[attr-defined]
    )


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("0.10.0, 0.9.0", ["0.9.0", "0.10.0"]),
        ("0.9.0,0.9.0", ["0.9.0"]),
        ("0.9..0.10", ["0.9.0", "0.9.1", "0.10.0"]),
        ("0.9.1..1", ["0.9.1", "0.10.0"]),
    ],
)
def test_releases_are_oldest_first(monkeypatch: pytest.MonkeyPatch, text: str, chosen: list[str]) -> None:
    """They are sorted as versions and not as text."""
    pip_says(monkeypatch, f"print({PIP_OUTPUT!r})")
    assert chosen_releases(text, "tiny") == chosen


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (" , ", "names no release"),
        ("newest", "is no version"),
        ("1..x", "is no version"),
        ("3..4", "finds no release of tiny"),
    ],
)
def test_what_names_no_release_is_refused(monkeypatch: pytest.MonkeyPatch, text: str, said: str) -> None:
    """The refusal is one line."""
    pip_says(monkeypatch, f"print({PIP_OUTPUT!r})")
    with pytest.raises(UsageError, match=said):
        chosen_releases(text, "tiny")


def test_a_failure_of_pip_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """This happens without a network, for example."""
    pip_says(monkeypatch, "raise SystemExit(1)")
    with pytest.raises(UsageError, match="cannot list the releases of tiny"):
        available("tiny")


def test_pip_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the pip of this interpreter."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> Any:
        commands.append(command)
        return subprocess.CompletedProcess(command, 0, PIP_OUTPUT, "")

    monkeypatch.setattr(versions.subprocess, "run", run)  # type: ignore[attr-defined]
    assert available("tiny")[0] == "0.10.0"
    assert commands == [[sys.executable, "-m", "pip", "index", "versions", "tiny"]]


@pytest.mark.parametrize(
    ("release", "text", "among"),
    [
        ("0.20.1", "0.20..0.26", True),
        ("0.26.0", "0.20..0.26", True),
        ("0.26.1", "0.20..0.26", False),
        ("0.9.0", "0.20..0.26", False),
        ("0.10.0", "0.9.0, 0.10", True),
        ("0.10.1", "0.9.0, 0.10", False),
    ],
)
def test_a_release_is_among_those_of_a_list_or_a_range(release: str, text: str, among: bool) -> None:
    """Versions are compared: 0.10 is 0.10.0, and 0.9 is earlier than 0.20."""
    assert is_among(release, text) is among
