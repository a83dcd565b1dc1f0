"""If an engine ends at its first requests, its cell opens without a rule, and the reason has the engine's own error."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.registry import CELLS
from coldproof.harness.event_log import EventLog
from coldproof.harness.execution.engines import cell_start
from coldproof.harness.execution.engines.cell_start import ComparisonRules
from coldproof.harness.judgement.oracle import OracleError

LOG = """\
(EngineCore pid=7) ERROR 11-25 [core.py:1] Traceback (most recent call last):
(EngineCore pid=7) ERROR 11-25 [core.py:1] KeyError: 'cmpl-1'
(APIServer pid=6) ERROR 11-25 [async_llm.py:9] vllm.v1.engine.exceptions.EngineDeadError: see above
INFO: "POST /v1/completions HTTP/1.1" 500 Internal Server Error
"""


def found(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    *,
    alive: bool,
    log: str = LOG,
    own_cold_engine: bool = True,
    attached: bool = False,
) -> ComparisonRules:
    """Return what a calibration finds if its cold engine cannot answer."""

    def fail(*_: Any) -> NoReturn:
        raise OracleError("the cold-engine oracle cannot answer: HTTP 500")

    monkeypatch.setattr(cell_start, "own_rules", fail)
    monkeypatch.setattr("coldproof.harness.execution.engines.deaths.DEATH_SECONDS", 0.2)
    there = {Capability.COLD_ANSWERS: Support(True, "a second engine")}
    engine = SimpleNamespace(alive=lambda: alive, log_tail=lambda: log, capabilities=there)
    options = SimpleNamespace(attached=attached, shared=attached)
    pool: Any = SimpleNamespace(log=EventLog(tmp_path / "events.ndjson"), options=options)
    cold = SimpleNamespace(engine=engine, name="cold-engine", saltless=False)
    started: Any = SimpleNamespace(tested=engine, cold=cold, cold_engine=engine if own_cold_engine else None)
    return cell_start.find_rules(pool, CELLS["default"], started)


def test_the_last_error_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The error is that of the engine, and not that of the server in front of it. No answer counts by the rule."""
    rules = found(monkeypatch, tmp_path, alive=False)
    assert rules.ended.startswith("the cold-engine oracle cannot answer: HTTP 500. The engine ended with ")
    assert "KeyError: 'cmpl-1'" in rules.ended
    assert "EngineDeadError" not in rules.ended
    assert "engine-*.log" in rules.ended
    assert not rules.rule.counts(1000.0)


def test_a_log_without_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The reason has no error then."""
    assert (
        "The engine ended at one of its first requests"
        in found(monkeypatch, tmp_path, alive=False, log="Killed\n").ended
    )


def test_a_running_engine_has_not_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The engine refused or gave an invalid answer."""
    with pytest.raises(OracleError, match=r"HTTP 500$"):
        found(monkeypatch, tmp_path, alive=True)


@pytest.mark.parametrize("without", [{"own_cold_engine": False}, {"attached": True}])
def test_only_a_cold_engine_of_our_own_is_reported_as_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, without: dict[str, Any]
) -> None:
    """The engine under test has a cache, and a user's server cannot be started again."""
    with pytest.raises(OracleError, match=r"HTTP 500$"):
        found(monkeypatch, tmp_path, alive=False, **without)
