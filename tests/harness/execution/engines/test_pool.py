"""The pool of a run starts no engine once the run is ending."""

from __future__ import annotations

from pathlib import Path

import pytest

from coldproof.adapters.registry import CELLS
from coldproof.harness.event_log import EventLog
from coldproof.harness.execution.engines.pool import EnginePool
from coldproof.harness.options import Options


def test_no_engine_starts_while_the_run_is_ending(tmp_path: Path) -> None:
    """The interrupt of a signal may be lost in a destructor; the next start of an engine repeats it in any thread."""
    options = Options(engine="vllm-inproc", report_dir=tmp_path, cache_dir=tmp_path / "cache")
    pool = EnginePool(options, EventLog(tmp_path / "events.ndjson"))
    pool.closing = True
    with pytest.raises(KeyboardInterrupt):
        pool.open_engine(CELLS["default"], purpose="fresh")
    with pytest.raises(KeyboardInterrupt):
        pool.open_in_background(CELLS["default"], caching=True, purpose="fresh").result()
    pool.close()
