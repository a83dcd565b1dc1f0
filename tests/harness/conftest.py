"""Fixtures of the tests about bundles."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import bundles


@pytest.fixture
def small_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of requirements is the bundles' small one."""
    bundles.small_list(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of one run. Nobody changes it."""
    return bundles.write(tmp_path_factory.mktemp("whole") / "bundle")
