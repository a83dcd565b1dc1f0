"""After Ctrl-C pytest tears down its fixtures after the end of the run. Nothing is left to stop, which is no error."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from coldproof.harness.options import Options
from coldproof.harness.session.conductor import ConformanceRun, Role


def test_a_cell_that_is_closed_after_the_run_has_nothing_to_stop(tmp_path: Path) -> None:
    """The end of the run has stopped every engine before the cell's fixture is torn down."""
    stopped: list[str] = []
    run = ConformanceRun(Options(engine="vllm", report_dir=tmp_path), Role.ALONE)
    sut = SimpleNamespace(engines=SimpleNamespace(close=lambda: stopped.append("cell")))
    run.finish(interrupted=True)
    run.close_cell(cast(Any, sut))
    assert stopped == []
