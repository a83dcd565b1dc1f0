"""Where generated models are stored: next to a checkout's code, and never in an installation."""

from __future__ import annotations

from pathlib import Path

import platformdirs
import pytest
from support.paths import ROOT

from coldproof import harness
from coldproof.harness.event_log import EventLog
from coldproof.harness.execution.engines.pool import EnginePool
from coldproof.harness.execution.models.cache_folder import default_cache, generated_files
from coldproof.harness.options import Options
from coldproof.harness.selection.command_line import read_options


def test_a_checkout_keeps_them_in_a_folder_that_git_ignores() -> None:
    """The folder does not depend on the current directory."""
    assert default_cache() == ROOT / ".coldproof"


def test_an_installation_keeps_them_in_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The installation may be read-only, and does not belong to the user."""
    monkeypatch.setattr(harness, "__file__", str(tmp_path / "site-packages" / "harness" / "__init__.py"))
    assert default_cache() == Path(platformdirs.user_cache_dir("coldproof"))
    assert generated_files() == default_cache() / "cache"


def test_a_run_uses_the_given_folder(tmp_path: Path) -> None:
    """Scratch files of the run are in the same folder until the run is over."""
    options = Options(engine="vllm-inproc", report_dir=tmp_path, cache_dir=tmp_path / "here")
    session = EnginePool(options, EventLog(tmp_path / "events.ndjson"))
    assert session.workspace.cache == tmp_path / "here" / "cache"
    assert session.workspace.scratch.parent == tmp_path / "here"
    session.close()
    assert not session.workspace.scratch.exists()


def test_a_folder_that_was_named_is_the_same_from_everywhere(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines are started in other folders than the command."""
    assert read_options(request.config, ()).cache_dir is None
    monkeypatch.setattr(request.config.option, "cache_dir", "here")
    assert read_options(request.config, ()).cache_dir == Path.cwd() / "here"
