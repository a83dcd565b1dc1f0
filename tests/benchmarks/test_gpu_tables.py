"""The page about runs on a GPU has the figures of the measurements."""

from __future__ import annotations

from support.modules import script
from support.paths import ROOT

gpu_tables = script("benchmarks/gpu/gpu_tables.py")
PAGE = (ROOT / "docs" / "gpu.md").read_text()


def test_every_table_is_on_the_page() -> None:
    """The page has the output of the script."""
    for lines in gpu_tables.tables():
        assert "\n".join(lines) in PAGE


def test_every_violation_is_attributed() -> None:
    """A violation without an attribution is counted as a false positive."""
    cases = [(run, case) for run in gpu_tables.RUNS for case in run["violations"]]
    assert all(case["judgement"] for _, case in cases)
    wrong = [(run["step"], case["requirement"]) for run, case in cases if case["judgement"] == "false positive"]
    assert wrong == [("fp8", "GROUND-1")]
    assert all(f"| {case['requirement']} " in PAGE for run, case in cases if not run["fault"])
