"""Whole runs on servers by URL without vLLM's fields: what they conclude, and why it is right."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.fake_plain import serving
from support.paths import COUNTED
from support.suite_runs import run_coldproof

from coldproof.harness.schema.results import Results, read_results

TEXTS = {"texts": True, "scores": False}


def run(folder: Path, url: str) -> Results:
    """Return the results of a short run of one requirement."""
    words = ["--engine-url", url, "--requirements", "CHAT-1", *COUNTED, "--diagnose", "none", "--allow-not-exercised"]
    done = run_coldproof([*words, "--report-dir", str(folder)])
    assert (folder / "results.json").is_file(), done.stdout
    return read_results(folder / "results.json")


@pytest.mark.parametrize("offers", [pytest.param({"bypass": True}, marks=pytest.mark.nightly), {**TEXTS, "keeps": 6}])
def test_a_server_that_answers_hits_wrongly_is_violated(tmp_path: Path, offers: dict[str, Any]) -> None:
    """Its own cold answers show it, and the script of the case needs nothing of Coldproof."""
    with serving(stale=True, **offers) as fake:
        found = run(tmp_path / "report", fake.url)
        (requirement,) = found.requirements
        assert requirement.verdict == "VIOLATED", requirement.reason
        (script, *_) = sorted((tmp_path / "report" / "cases").glob("*.py"))
        alone = subprocess.run([sys.executable, "-I", script, fake.url], capture_output=True, text=True, cwd=tmp_path)
    assert alone.returncode == 1, alone.stdout + alone.stderr
    assert "WRONG" in alone.stdout
    assert found.calibration is not None
    assert any("cold if its counts" in note for note in found.calibration.notes)


@pytest.mark.parametrize(
    ("offers", "verdict"),
    [
        ({"bypass": True}, "CONFORMS"),
        pytest.param({"keeps": 0}, "NOT EXERCISED", marks=pytest.mark.nightly),
        ({"counts": False, "stale": True}, "UNSUPPORTED"),
    ],
)
def test_agreement_counts_only_where_hits_and_cold_answers_are_seen(
    tmp_path: Path, offers: dict[str, Any], verdict: str
) -> None:
    """A server without a cache has no hit. One that counts none could answer each request from its cache."""
    with serving(**offers) as fake:
        (requirement,) = run(tmp_path / "report", fake.url).requirements
    assert requirement.verdict == verdict, requirement.reason
