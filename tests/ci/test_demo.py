"""docs/demo shows a report as this version writes it."""

from __future__ import annotations

import runpy
from pathlib import Path

from support.paths import ROOT

from coldproof.harness.cli.main import main
from coldproof.harness.schema.results import read_results

DEMO = runpy.run_path(str(ROOT / "ci" / "demo.py"))
MOST_BYTES = 1_500_000


def test_the_summary_is_that_of_the_stored_run() -> None:
    """After a change of the summary, `python ci/demo.py` writes it again."""
    assert DEMO["TEXT"].read_text() == DEMO["text"](read_results(DEMO["RESULTS"]))


def test_the_page_is_made_by_the_command_that_the_text_names(tmp_path: Path) -> None:
    """The reader sees the injected bug and its replay."""
    command = next(line for line in DEMO["TEXT"].read_text().splitlines() if line.startswith("$ coldproof"))
    words = command.split()[2:]
    assert words == ["render", "docs/demo/results.json", "-o", "demo.html"]
    page = tmp_path / "demo.html"
    assert main([words[0], str(ROOT / words[1]), "-o", str(page)]) == 0
    results = read_results(DEMO["RESULTS"])
    assert results.fault is not None
    assert results.fault.name in page.read_text()
    assert "VIOLATED" in page.read_text()
    assert DEMO["RESULTS"].stat().st_size < MOST_BYTES


def test_the_stored_run_names_no_folder_of_the_machine_that_made_it() -> None:
    """The same run is stored again as it is."""
    results = read_results(DEMO["RESULTS"])
    assert DEMO["stored"](results) == results
