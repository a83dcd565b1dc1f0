"""What a killed process left is removed by the next start; folders in use and foreign folders are not touched."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from coldproof.adapters.common import scratch
from coldproof.adapters.common.scratch import IN_USE, ScratchFolder
from coldproof.harness.execution.engines.workspace import Workspace

HOLDS = """
import sys, pathlib
from coldproof.adapters.common.scratch import ScratchFolder
held = ScratchFolder("work-", parent=pathlib.Path(sys.argv[1]))
(held.path / "model.gguf").write_text("large")
print(held.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def others(tmp_path: Path) -> list[Path]:
    """Return folders with our prefix that are not ours: one without a lock, one of another machine, and a link."""
    folders = [tmp_path / f"work-{name}" for name in ("mine", "elsewhere")]
    for folder in folders:
        folder.mkdir()
        (folder / "thesis.docx").write_text("mine")
    (folders[1] / IN_USE).write_text("another machine")
    link = tmp_path / "work-link"
    link.symlink_to(folders[0])
    return [*folders, link]


def test_the_folder_of_a_killed_process_is_removed_and_that_of_a_living_one_is_not(
    tmp_path: Path, others: list[Path]
) -> None:
    """The lock decides, never the age of the folder."""
    words = [sys.executable, "-c", HOLDS, str(tmp_path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        left = Path(process.stdout.readline().strip())
        ScratchFolder("work-", parent=tmp_path).remove()
        assert (left / "model.gguf").is_file()
        process.kill()
        process.wait()
    mine = ScratchFolder("work-", parent=tmp_path)
    assert not left.exists()
    assert mine.path.is_dir()
    assert all(folder.exists() for folder in others)
    assert (others[0] / "thesis.docx").read_text() == "mine"
    mine.remove()
    mine.remove()
    assert sorted(tmp_path.iterdir()) == sorted(others)


def test_a_folder_that_is_being_made_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may start between the creation of a folder and its lock."""
    seen: list[bool] = []

    def beside(*_: object) -> None:
        seen.extend(map(scratch.is_left, tmp_path.iterdir()))

    with monkeypatch.context() as patch:
        patch.setattr("coldproof.adapters.common.scratch.fcntl.flock", beside)
        made = ScratchFolder("work-", parent=tmp_path)
    assert seen == [False]
    made.remove()


def test_a_shared_folder_keeps_what_is_in_it(tmp_path: Path) -> None:
    """In a shared folder we use one folder that the server may read, and remove only that one."""
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "adapter").write_text("mine")
    workspace = Workspace(tmp_path / "cache", shared)
    assert workspace.scratch.parent == shared
    assert workspace.scratch.stat().st_mode & 0o777 == 0o755
    workspace.folder().mkdir()
    workspace.remove()
    assert [path.name for path in shared.iterdir()] == ["adapter"]
