"""Repairs get into mlx-lm's server through the process that starts it, and into no other."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from coldproof.adapters.mlx import repairs
from coldproof.adapters.mlx.repairs import FILES, REPAIRED, SHIPPED, planted, program
from coldproof.adapters.spec.repair import RepairError


def test_servers_that_start_meanwhile_have_the_repairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that start before and after have what was there."""
    monkeypatch.delenv(FILES, raising=False)
    assert program(os.environ) == SHIPPED
    with planted([tmp_path / "a.py", tmp_path / "b.py"], tmp_path):
        assert program(os.environ) == REPAIRED
        assert os.environ[FILES].split(os.pathsep) == [str(tmp_path / "a.py"), str(tmp_path / "b.py")]
        with planted([tmp_path / "c.py"], tmp_path):
            assert os.environ[FILES] == str(tmp_path / "c.py")
        assert len(os.environ[FILES].split(os.pathsep)) == 2
    assert FILES not in os.environ


def test_a_repair_that_does_not_fit_ends_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It never serves as shipped while the report says otherwise."""
    file = tmp_path / "wrong" / "repair.py"
    file.parent.mkdir()
    file.write_text(
        "from coldproof.adapters.spec.repair import edit, part\n"
        "def install():\n    edit(part('coldproof.adapters.mlx.repairs'), 'program', ('no such text', ''))\n"
    )
    monkeypatch.setenv(FILES, str(file))
    with pytest.raises(RepairError, match="wrong is not for this engine"):
        repairs.main()
