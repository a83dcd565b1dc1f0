"""Only listed files are moved, deleted or overwritten, because a user's file may have any of our names."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from coldproof.reports.exports.write import write_text
from coldproof.reports.files.own_folder import (
    HEAD,
    KEPT,
    MARKER,
    SEAL,
    FolderRefused,
    OwnFolder,
    adopt,
    claim,
    listed,
    mark,
    remove_listed,
    remove_report,
)


def content(folder: Path) -> dict[str, str]:
    """Return every file below a folder with its text, and links with their targets."""
    found = [path for path in folder.rglob("*") if path.is_symlink() or path.is_file()]
    texts = [os.readlink(path) if path.is_symlink() else path.read_text(errors="replace") for path in found]
    return {path.relative_to(folder).as_posix(): text for path, text in zip(found, texts, strict=True)}


def report(folder: Path, *names: str, text: str = "ours") -> None:
    """Begin a run in a folder, write files, and end it."""
    with contextlib.closing(OwnFolder.begin(folder)) as opened:
        opened.keep_earlier()
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_text(folder / name, text)


def write_later(path: Path, text: str) -> None:
    """Write a file one hour after all existing files."""
    path.write_text(text)
    later = path.stat().st_mtime + 3600
    os.utime(path, (later, later))


@pytest.mark.parametrize("name", ["thesis.docx", "cases/thesis.docx", "engine-01.log", "results.json", SEAL])
def test_a_folder_with_files_and_no_list_is_refused(tmp_path: Path, name: str) -> None:
    """The names of the files do not matter, and nothing is changed."""
    folder = tmp_path / "proj"
    (folder / name).parent.mkdir(parents=True)
    (folder / name).write_text("mine")
    with pytest.raises(FolderRefused, match="has files that Coldproof did not write"):
        OwnFolder.begin(folder)
    assert content(folder) == {name: "mine"}


def test_a_link_in_a_folder_counts_as_a_foreign_file(tmp_path: Path) -> None:
    """The link may lead to one of our folders or nowhere."""
    report(tmp_path / "ours", "index.html")
    for target in (tmp_path / "ours", tmp_path / "nowhere"):
        folder = tmp_path / f"with a link to {target.name}"
        folder.mkdir()
        (folder / "link").symlink_to(target)
        with pytest.raises(FolderRefused):
            OwnFolder.begin(folder)


def test_a_foreign_list_does_not_count(tmp_path: Path) -> None:
    """A file with the name of our list, or a link to one of our lists, does not count."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / MARKER).write_text("shopping\n")
    report(tmp_path / "ours")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / MARKER).symlink_to(tmp_path / "ours" / MARKER)
    for name in ("a", "b"):
        with pytest.raises(FolderRefused):
            OwnFolder.begin(tmp_path / name)


def test_absent_and_empty_folders_are_taken_and_those_that_hold_only_folders_of_ours(tmp_path: Path) -> None:
    """Measurements have a folder inside the usual report folder, which then has no list of its own."""
    (tmp_path / "empty").mkdir()
    report(tmp_path / "empty", "a")
    report(tmp_path / "absent" / "below", "a")
    report(tmp_path / "absent", "a")
    assert content(tmp_path / "absent").keys() == {MARKER, "a", f"below/{MARKER}", "below/a"}


def test_an_earlier_report_moves_aside_and_nothing_else_does(tmp_path: Path) -> None:
    """The user's files in the folder stay unchanged."""
    folder = tmp_path / "report"
    report(folder, "index.html", "cases/A.json", text="first")
    (folder / "cases" / "thesis.docx").write_text("mine")
    (folder / "notes.txt").write_text("mine")
    report(folder, "index.html", text="second")
    assert {name: text for name, text in content(folder).items() if name != MARKER} == {
        "index.html": "second",
        "cases/thesis.docx": "mine",
        "notes.txt": "mine",
    }
    kept = content(tmp_path / "report.1")
    assert (kept.pop(MARKER).splitlines()[1:], kept) == (
        ['"cases/A.json"', '"index.html"'],
        {"index.html": "first", "cases/A.json": "first"},
    )


def test_the_newest_reports_and_changed_ones_are_kept(tmp_path: Path) -> None:
    """A report with a note or a signature is never deleted, nor is another folder with such a name."""
    folder = tmp_path / "report"
    (tmp_path / "report.1").mkdir()
    (tmp_path / "report.1" / "mine").write_text("mine")
    for number in range(KEPT + 4):
        report(folder, "index.html", "cases/A.json", text=str(number))
        if number == 1:
            (tmp_path / "report.2" / "notes.txt").write_text("mine")
    beside = {path.name: content(path) for path in tmp_path.iterdir()}
    assert beside.keys() == {"report", "report.1", "report.2", "report.5", "report.6", "report.7"}
    assert beside["report.1"] == {"mine": "mine"}
    assert beside["report.2"]["notes.txt"] == "mine"
    assert [beside[f"report.{number}"]["index.html"] for number in (2, 5, 6, 7)] == ["0", "3", "4", "5"]


def test_a_changed_report_is_never_deleted(tmp_path: Path) -> None:
    """A listed file that was changed after our last write belongs to a user, and so does the target of a link."""
    folder, archive = tmp_path / "report", tmp_path / "archive"
    report(folder, "index.html", "summary.md", text="0")
    write_later(folder / "summary.md", "my notes")
    for number in range(1, 3):
        report(folder, "index.html", text=str(number))
    report(archive, "index.html", "cases/A.json", text="archived")
    (tmp_path / "report.3").symlink_to(archive)
    for number in range(3, KEPT + 6):
        report(folder, "index.html", text=str(number))
    assert content(tmp_path / "report.1")["summary.md"] == "my notes"
    assert content(archive)["cases/A.json"] == content(archive)["index.html"] == "archived"
    assert (tmp_path / "report.3").is_symlink()
    assert not (tmp_path / "report.2").exists()


def test_a_bundle_never_moves(tmp_path: Path) -> None:
    """The bundle of a qualification is not an earlier report."""
    report(tmp_path / "bundle", "index.html", SEAL)
    before = content(tmp_path / "bundle")
    with pytest.raises(FolderRefused, match="is the bundle of a qualification"):
        report(tmp_path / "bundle", "index.html")
    remove_report(tmp_path / "bundle")
    assert content(tmp_path / "bundle") == before


def test_the_replay_of_a_case_moves_with_its_report_and_measurements_stay(tmp_path: Path) -> None:
    """A replay belongs to its case, and a measurement continues where it was."""
    folder = tmp_path / "report"
    report(folder, "cases/A.json")
    report(folder / "cases" / "A-replay", "index.html")
    report(folder / "power", "rows/a.json")
    report(folder, "index.html")
    assert (tmp_path / "report.1" / "cases" / "A-replay" / "index.html").is_file()
    assert not (folder / "cases" / "A-replay").exists()
    assert (folder / "power" / "rows" / "a.json").is_file()
    for _ in range(KEPT + 1):
        report(folder, "index.html")
    assert not (tmp_path / "report.1").exists()


def test_a_foreign_file_is_never_overwritten(tmp_path: Path) -> None:
    """Such a file may also appear later in one of our folders."""
    report(tmp_path / "report")
    file = tmp_path / "report" / "index.html"
    file.write_text("mine")
    with pytest.raises(FileExistsError, match="Coldproof did not write it"):
        write_text(file, "ours")
    assert file.read_text() == "mine"
    assert [path.name for path in file.parent.iterdir() if path.name.startswith(".")] == []


def test_nothing_is_written_or_deleted_through_a_link(tmp_path: Path) -> None:
    """A link may replace one of our files or folders."""
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "A.json").write_text("mine")
    folder = tmp_path / "report"
    report(folder, "cases/A.json", "index.html")
    (folder / "cases" / "A.json").unlink()
    (folder / "cases").rmdir()
    (folder / "cases").symlink_to(mine)
    (folder / "index.html").unlink()
    (folder / "index.html").symlink_to(mine / "A.json")
    for name in ("cases/A.json", "index.html", "cases/B.json"):
        with pytest.raises(FileExistsError, match="a symbolic link leads elsewhere"):
            write_text(folder / name, "ours")
    remove_listed(folder)
    assert content(mine) == {"A.json": "mine"}
    assert (folder / "cases").is_symlink()


def test_a_list_cannot_name_files_outside_its_folder(tmp_path: Path) -> None:
    """A list may come from elsewhere, so names outside the folder are ignored."""
    (tmp_path / "mine").write_text("mine")
    folder = tmp_path / "report"
    report(folder, "a")
    names = ['"../mine"', f'"{tmp_path}/mine"', '"a/../../mine"', '"./b"', '""', "3", "torn", '"a', "\xff"]
    with (folder / MARKER).open("a", encoding="latin-1") as file:
        file.write("\n".join(names) + "\n")
    (folder / "b").write_text("mine")
    assert listed(folder) == {"a"}
    remove_listed(folder)
    assert (content(tmp_path)["mine"], content(folder)["b"]) == ("mine", "mine")


def test_a_list_that_a_full_disk_cut_short_is_still_one(tmp_path: Path) -> None:
    """Otherwise the folder could not be used again. Unlisted files are kept."""
    folder = tmp_path / "report"
    folder.mkdir()
    (folder / MARKER).write_bytes(HEAD[:10])
    (folder / "mine").write_text("mine")
    report(folder, "a")
    report(folder, "a")
    assert (folder / "mine").read_text() == "mine"


def test_a_second_run_is_refused_while_the_first_one_runs(tmp_path: Path) -> None:
    """Workers of the first run may join, and the folder is free after its end."""
    folder = tmp_path / "report"
    first = OwnFolder.begin(folder)
    with pytest.raises(FolderRefused, match="another run is writing into this folder"):
        OwnFolder.begin(folder)
    first.share()
    worker = OwnFolder.join(folder)
    first.close()
    with pytest.raises(FolderRefused):  # a worker that outlives its run still writes
        OwnFolder.begin(folder)
    with pytest.raises(FolderRefused):
        OwnFolder.enter(folder)
    worker.close()
    OwnFolder.begin(folder).close()


HOLDS = """
import sys, pathlib
from coldproof.reports.files.own_folder import OwnFolder
held = OwnFolder.begin(pathlib.Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_killed_process_releases_its_folder(tmp_path: Path) -> None:
    """The lock belongs to the system, not to a file."""
    words = [sys.executable, "-c", HOLDS, str(tmp_path / "report")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(FolderRefused):
            OwnFolder.begin(tmp_path / "report")
        process.kill()
        process.wait()
        OwnFolder.begin(tmp_path / "report").close()


def test_files_outside_of_report_folders_are_not_listed(tmp_path: Path) -> None:
    """A file that the user names is written without a list."""
    write_text(tmp_path / "page.html", "one")
    write_text(tmp_path / "page.html", "two")
    assert content(tmp_path) == {"page.html": "two"}
    assert claim(tmp_path / "other") == tmp_path / "other"


def test_a_folder_can_be_marked_without_taking_what_is_in_it(tmp_path: Path) -> None:
    """`render` adds a page to a folder; `adopt` is for files that this process has written."""
    (tmp_path / "mine").write_text("mine")
    mark(tmp_path)
    assert listed(tmp_path) == set()
    adopt(tmp_path)
    assert listed(tmp_path) == {"mine"}
