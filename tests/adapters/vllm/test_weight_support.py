"""What vLLM's routes leave open about weights: the backend of a transfer, and what a sleep discards."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path

import pytest

from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.registry import CELLS
from coldproof.adapters.spec.reproduction import RecordedEngine
from coldproof.adapters.vllm.cells.cell import VllmCell
from coldproof.adapters.vllm.plugins import TRANSFER_BACKEND, transfer_plugin
from coldproof.adapters.vllm.reproducer import command
from coldproof.adapters.vllm.server import VllmOptions, server_command
from coldproof.adapters.vllm.weight_support import STAYS, of_server

LISTED = {
    Capability.SLEEP: Support(None, "listed"),
    Capability.SLEEP_DISCARDS: Support(None, "listed"),
    Capability.WEIGHTS_TRANSFER: Support(None, "listed"),
}


@pytest.mark.parametrize(
    ("digests", "on_cpu", "flag", "sleeps", "discards"),
    [
        (False, True, "", True, False),  # vLLM's CPU worker keeps the weights
        (True, True, "", True, True),  # the fingerprint worker forgets them
        (False, False, "", None, None),  # a GPU without the flag: the server refuses
        (False, False, "--enable-sleep-mode", True, True),
    ],
)
def test_a_sleep_discards_weights_where_there_is_a_worker_that_does(
    *, digests: bool, on_cpu: bool, flag: str, sleeps: bool | None, discards: bool | None
) -> None:
    """An absent capability has its reason."""
    found = of_server(LISTED, transfers=False, digests=digests, on_cpu=on_cpu, sleep_flag=flag)
    assert (found[Capability.SLEEP].present, found[Capability.SLEEP_DISCARDS].present) == (sleeps, discards)
    if discards is False:
        assert found[Capability.SLEEP_DISCARDS].evidence == STAYS


def test_weights_are_transferred_with_a_backend_only() -> None:
    """Routes and backend are both required."""
    absent = {**LISTED, Capability.WEIGHTS_TRANSFER: Support(False, "not listed")}
    settings = {"digests": False, "on_cpu": True, "sleep_flag": ""}
    for probed, transfers, present in ((LISTED, True, True), (LISTED, False, False), (absent, True, False)):
        found = of_server(probed, transfers=transfers, **settings)
        assert found[Capability.WEIGHTS_TRANSFER].present is present


def test_a_server_of_the_cell_has_the_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command names the backend, and the import path has the plugin that registers it."""
    cell = CELLS["weight-transfer"]
    assert isinstance(cell, VllmCell)
    options = VllmOptions(model="m", log=tmp_path / "engine.log", weight_transfer=cell.weight_transfer)
    words = server_command(options, 8000)
    assert json.loads(words[words.index("--weight-transfer-config") + 1]) == {"backend": TRANSFER_BACKEND}
    monkeypatch.setattr(sys, "path", [str(transfer_plugin(tmp_path / "plugins")), *sys.path])
    (plugin,) = [e for e in importlib.metadata.entry_points(group="vllm.general_plugins") if e.name == TRANSFER_BACKEND]
    assert plugin.load().__name__ == "register_transfer_backend"


def test_a_script_starts_a_server_without_the_backend() -> None:
    """The backend would need Coldproof, and a reload loads the same weights."""
    line = f"python -m vllm.x --weight-transfer-config '{json.dumps({'backend': TRANSFER_BACKEND})}' --port 1"
    engine = RecordedEngine(
        name="vllm", version=None, config={"command": line}, contents=(), generated_model=False, cell=None
    )
    assert command(engine) == "python -m vllm.x --port 8000"
