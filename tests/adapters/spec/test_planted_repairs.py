"""Repairs get into a server through the process that starts it, and into no other."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from coldproof.adapters.llamapython import repairs as of_llamapython
from coldproof.adapters.mlx import repairs as of_mlx
from coldproof.adapters.spec.planted_repairs import FILES, planted
from coldproof.adapters.spec.repair import RepairError

ENGINES = pytest.mark.parametrize("engine", [of_llamapython, of_mlx], ids=["llamapython", "mlx"])


@ENGINES
def test_servers_that_start_meanwhile_have_the_repairs(
    engine: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that start before and after have what was there."""
    monkeypatch.delenv(FILES, raising=False)
    assert engine.program(os.environ) == engine.SHIPPED
    with planted([tmp_path / "a.py", tmp_path / "b.py"], tmp_path):
        assert engine.program(os.environ) == engine.REPAIRED
        assert os.environ[FILES].split(os.pathsep) == [str(tmp_path / "a.py"), str(tmp_path / "b.py")]
        with planted([tmp_path / "c.py"], tmp_path):
            assert os.environ[FILES] == str(tmp_path / "c.py")
        assert len(os.environ[FILES].split(os.pathsep)) == 2
    assert FILES not in os.environ


@pytest.mark.parametrize("main", [of_llamapython.main, of_mlx.main], ids=["llamapython", "mlx"])
def test_a_repair_that_does_not_fit_ends_the_server(
    main: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It never serves as shipped while the report says otherwise."""
    file = tmp_path / "wrong" / "repair.py"
    file.parent.mkdir()
    file.write_text(
        "from coldproof.adapters.spec.repair import edit, part\n"
        "def install():\n    edit(part('coldproof.adapters.mlx.repairs'), 'program', ('no such text', ''))\n"
    )
    monkeypatch.setenv(FILES, str(file))
    with pytest.raises(RepairError, match="wrong is not for this engine"):
        main()
