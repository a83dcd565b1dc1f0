"""SGLang's own corruptions of its KV, as faults: which servers get them, and whether a log shows that one acted."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.sglang_start import options

from coldproof.adapters.sglang import faults, setup
from coldproof.adapters.sglang.cells import CELLS

DONE = "kv_canary perturb real_kv_used: group=FULL source_idx=0 slot=17 row=17 col=0 original_byte=0x1F new_byte=0xE0"
SKIPPED = "kv_canary perturb real_kv_used: skipped because no active nonzero slots were found"


@pytest.mark.parametrize("name", faults.FAULTS)
def test_an_engine_with_a_cache_has_the_fault_and_a_cold_one_has_not(name: str, tmp_path: Path) -> None:
    with faults.injected(name, tmp_path / "fault"):
        tested, cold = (setup.environment(options(caching=on), {}) for on in (True, False))
        assert any(variable.startswith(faults.PREFIX) for variable in tested)
        assert not any(variable.startswith(faults.PREFIX) for variable in cold)
    assert not any(variable.startswith(faults.PREFIX) for variable in setup.environment(options(), {}))


@pytest.mark.parametrize(("line", "acted"), [(DONE, True), (SKIPPED, False), ("", False)])
def test_a_fault_has_acted_if_a_log_says_so(line: str, tmp_path: Path, *, acted: bool) -> None:
    log = tmp_path / "engine.log"
    log.write_text(f"[2026-12-02 01:00:00] {line}\n")
    (tmp_path / "logs").write_text(f"{log}\n{tmp_path / 'gone.log'}")
    assert faults.has_acted(tmp_path) is acted


def test_the_logs_of_a_fault_are_known_while_it_lasts(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text(DONE)
    with faults.injected("kv-in-use-is-changed", tmp_path / "fault"):
        assert not faults.has_acted(tmp_path / "fault")
        assert setup.corruption is not None
        setup.corruption.list_log(log)
        assert faults.has_acted(tmp_path / "fault")
    assert setup.corruption is None


def test_every_fault_names_a_cell_with_the_canary() -> None:
    with_canary = {cell.name for cell in CELLS if "--kv-canary" in cell.arguments}
    assert all(with_canary.issuperset(one.cells) and one.cells for one in faults.FAULTS.values())
