"""A fault in a requirement that a known cause violates as well is reported as new: the accepted cause hides nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.suite_runs import run_coldproof

from coldproof.harness.schema.results import read_results
from coldproof.harness.schema.verdict import Verdict

pytestmark = [pytest.mark.engine, pytest.mark.nightly]
# By requirement: a cell of the exact layer in which a known cause violates it, and a fault that is planted beside that.
BESIDE = {
    "LORA-1": ("default", "adapters-are-known-by-number"),  # the repair of LORA-3's cause makes its key right as well
    "LORA-3": ("default", "a-hits-blocks-change-places"),
    "LORA-5": ("default", "only-the-first-change-of-a-name-is-noticed"),
    "LORA-6": ("default", "the-key-changes-before-the-weights"),
    # The repair of LORA-3's cause makes what stands behind the skipped reset right as well.
    "CTRL-1": ("default", "a-reset-that-overlaps-a-load-is-skipped"),
    "CTRL-3": ("tier-offload", "a-reset-skips-the-second-tier"),
    "TIER-1": ("tier-failing-window", "layers-change-places-in-the-tier"),
    "TIER-4": ("tier-failing", "failed-loads-count-as-loaded"),
    "TIER-5": ("tier-kept-window", "an-abort-during-a-load-leaks"),
    "TIER-6": ("tier-example", "files-of-an-earlier-engine-are-read-in-part"),
    "EVENT-3": ("events", "reported-hashes-are-of-other-blocks"),
    "EVENT-4": ("events-window", "only-the-first-group-is-reported"),
    "EVENT-5": ("events", "stores-are-reported-after-the-reset-that-removed-them"),
    "EMBED-1": ("embeds", "half-of-each-row-is-hashed"),
    "MM-1": ("images", "images-are-hashed-where-they-end"),
    "MM-2": ("images", "each-image-is-new"),
    "MM-3": ("images-tight", "encoder-outputs-are-freed-while-they-are-needed"),
    "SESS-2": ("default", "a-closed-session-keeps-its-blocks"),
}
# The known cause ends the engine in each example, so that the fault acts in replays with its repair alone.
ONLY_REPAIRED = ("SESS-2",)


def words_of(requirement: str, folder: Path) -> list[str]:
    """Return the words of a run of one requirement with its fault, under the known issues that ship for vLLM."""
    cell, fault = BESIDE[requirement]
    words = ["--layers", "exact", "--cells", cell, "--requirements", requirement, "--fault", fault]
    return [
        "-q",
        *words,
        "--known-issues",
        "vllm",
        "--budget",
        "60s",
        "--diagnose",
        "none",
        "--report-dir",
        str(folder),
    ]


@pytest.mark.parametrize("requirement", BESIDE)
def test_a_fault_beside_a_known_cause_is_reported(requirement: str, tmp_path: Path) -> None:
    """The requirement is VIOLATED by a case that belongs to no accepted cause."""
    run = run_coldproof(words_of(requirement, tmp_path / "run"))
    results = read_results(tmp_path / "run" / "results.json")
    assert results.fault is not None
    assert results.fault.acted or requirement in ONLY_REPAIRED
    (found,) = results.requirements
    assert found.verdict is Verdict.VIOLATED, f"{found.reason}\n{run.stdout}"
    new = [case for case in results.cases if case.known_issue is None and not case.is_remark]
    assert new
    assert run.returncode == 1
