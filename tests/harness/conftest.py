"""Fixtures for the tests of bundles."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import bundles


@pytest.fixture
def small_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the list of requirements by the small one of the bundles."""
    bundles.small_list(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a bundle of one run. No test changes it."""
    return bundles.write(tmp_path_factory.mktemp("whole") / "bundle")
