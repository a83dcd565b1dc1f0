"""With a slow model a trial may have time for one example, which has to be small and to show the evidence."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.paths import ROOT, ended

from coldproof.harness.features.lora.evidence import Adapters
from coldproof.harness.judgement.evidence.cache import Options
from coldproof.harness.schema.results import read_results
from coldproof.harness.schema.verdict import Verdict

MOST_REQUESTS = 8  # of a trial on average, each warm and cold


@pytest.mark.engine
@pytest.mark.nightly
def test_the_first_example_of_each_requirement_shows_its_evidence(tmp_path: Path) -> None:
    """vLLM's scheduler runs with the fingerprint worker, so hits, evictions and preemptions are real.

    WEIGHT has evidence for each route of an update and each mode of a pause, more than one example has. Whether an
    answer ends with a stop string is random, because its tokens are. So is, once in 95 times, whether an answer of
    one token differs for an older adapter.
    """
    words = ["-m", "pytest", "-p", "support.slow_model", "-p", "no:cacheprovider", "suites", "--findings", "off"]
    words += ["--engine", "vllm-inproc", "--worker", "fingerprint", "--cells", "default,tight"]
    words += ["--budget", "1h", "--hypothesis-seed", "5", "--diagnose", "none"]
    words += ["--known-issues", str(ROOT / "adapters" / "vllm" / "known_issues.toml"), "--report-dir", str(tmp_path)]
    ran = ended([sys.executable, *words])
    results = read_results(tmp_path / "results.json")
    cells = [(r.id, cell) for r in results.requirements for cell in r.cells if cell.verdict is not Verdict.UNSUPPORTED]
    missing = {name: set(cell.missing) - {Options.STOPPED} for name, cell in cells}
    unlucky = [name for name, evidence in missing.items() if evidence == {Adapters.DISCRIMINATING}]
    assert len(unlucky) <= 1, ran.stdout[-2000:]
    lacking = {
        name: evidence
        for name, evidence in missing.items()
        if evidence and name not in unlucky and not name.startswith("WEIGHT")
    }
    assert lacking == {}, ran.stdout[-2000:]
    assert len(cells) > 20
    assert results.totals["requests"] < MOST_REQUESTS * len(cells)
    assert results.calibration is not None
    assert any("at 3% of their usual size" in note for note in results.calibration.notes)
