"""After Ctrl-C pytest takes its fixtures down behind our own end: nothing is left to stop, and that is no error."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from harness.conduct import Conductor


def test_a_cell_that_is_closed_after_the_run_has_nothing_to_stop() -> None:
    """The run's end stopped every engine; the cell's fixture comes later."""
    stopped: list[object] = []
    conductor = Conductor.__new__(Conductor)
    conductor.session = None
    lab = SimpleNamespace(standby=SimpleNamespace(discard=lambda: stopped.append("standby")), engine="engine")
    conductor.close_lab(cast(Any, lab))
    assert stopped == []
