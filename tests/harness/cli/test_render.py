"""`coldproof render` renders a stored run again, and renders a killed run from its events alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support import bundles
from support.page import Page

from coldproof.harness.cli.main import main
from coldproof.harness.release.bundle.run_folder import EVENTS
from coldproof.harness.schema.results import Results, read_results
from coldproof.harness.schema.verdict import Verdict
from coldproof.reports.files.own_folder import MARKER, OwnFolder

FILES = ("results.json", "index.html", "junit.xml", "ctrf.json", "summary.md", "badge.svg")


@pytest.fixture
def whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a complete run with a waived case."""
    bundles.small_list(tmp_path, monkeypatch)
    return bundles.write(tmp_path / "run")


@pytest.fixture
def killed(whole: Path) -> Path:
    """Return the folder of the same run, killed while it wrote the line of its last verdict."""
    lines = (whole / EVENTS).read_bytes().splitlines(keepends=True)
    last = max(place for place, line in enumerate(lines) if line.startswith(b'{"event":"verdict"'))
    (whole / EVENTS).write_bytes(b"".join(lines[:last]) + lines[last][: len(lines[last]) // 2])
    for name in FILES:
        (whole / name).unlink()
    return whole


def test_a_run_that_was_killed_is_drawn_from_its_events(killed: Path) -> None:
    """Every file is written and says that the run is incomplete, and the page has the case."""
    assert main(["render", str(killed)]) == 0
    results = read_results(killed / "results.json")
    assert (results.complete, results.exit_code) == (False, 3)
    assert [r.verdict for r in results.requirements].count(Verdict.NOT_EXERCISED) == 1
    page = Page((killed / "index.html").read_text(encoding="utf-8"))
    assert "INCOMPLETE RUN" in page.text
    assert "the run did not end: its last event is from " in page.text
    assert [case.id for case in results.cases] == [bundles.case().id]
    assert "the run did not end" in (killed / "junit.xml").read_text(encoding="utf-8")
    assert "the run did not end" in (killed / "summary.md").read_text(encoding="utf-8")
    assert "not verified" in (killed / "badge.svg").read_text(encoding="utf-8")


def test_a_second_render_gives_the_same_bytes(killed: Path) -> None:
    """The events are the same, and files of an earlier render change nothing."""
    main(["render", str(killed)])
    before = {name: (killed / name).read_bytes() for name in FILES}
    main(["render", str(killed)])
    assert {name: (killed / name).read_bytes() for name in FILES} == before


def test_results_that_are_behind_the_events_are_made_again(killed: Path, whole: Path, tmp_path: Path) -> None:
    """Such results were written while the run went on, or by another run."""
    main(["render", str(killed)])
    with (killed / EVENTS).open("ab") as log:
        log.write(b'\n{"event":"problem","at":1e10,"message":"the disk is full","usage":false}\n')
    assert main(["render", str(killed)]) == 0
    assert read_results(killed / "results.json").problem == "the disk is full"


def test_results_of_another_run_are_not_taken_for_these_events(whole: Path) -> None:
    """Those results began at another time."""
    stored = (whole / "results.json").read_bytes()
    (whole / "results.json").write_bytes(stored.replace(started(whole).encode(), b"1999-01-01T00:00:00+00:00"))
    assert main(["render", str(whole)]) == 0
    assert (whole / "results.json").read_bytes() == stored


def started(folder: Path) -> str:
    """Return the time at which a run began."""
    results: Results = read_results(folder / "results.json")
    return results.started


def test_a_whole_run_is_drawn_from_its_results(whole: Path) -> None:
    """Only the page is written."""
    for name in FILES:
        os.utime(whole / name, ns=(0, 0))  # the clock of a file system is too coarse for two times that follow closely
    page = (whole / "index.html").read_bytes()
    assert main(["render", str(whole)]) == 0
    assert (whole / "index.html").read_bytes() == page
    written = [name for name in FILES if (whole / name).stat().st_mtime_ns]
    assert written == ["index.html"]


def test_only_the_page_is_written_with_the_option(killed: Path, tmp_path: Path) -> None:
    """The folder of the run stays as it is."""
    assert main(["render", str(killed), "-o", str(tmp_path / "page.html")]) == 0
    assert "the run did not end" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert not (killed / "results.json").exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "has neither results.json nor events.ndjson"),
        (b"", "the events have no start of a run"),
        (b'{"event":"run_started","at":1.0}\n', "an event lacks 'version'"),
    ],
)
def test_what_is_no_run_is_refused(
    content: bytes | None, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The refusal is one line with exit code 4, and nothing is written."""
    if content is not None:
        (tmp_path / EVENTS).write_bytes(content)
    assert main(["render", str(tmp_path)]) == 4
    said = capsys.readouterr().err
    assert says in said
    assert said.startswith("coldproof render: ")
    assert said.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} <= {EVENTS}


def test_a_file_that_coldproof_did_not_write_is_not_replaced(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The results may be in a folder of the user. With -o the page is written elsewhere."""
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "results.json").write_bytes((whole / "results.json").read_bytes())
    (mine / "index.html").write_text("mine")
    assert main(["render", str(mine)]) == 3
    assert "it exists, and Coldproof did not write it" in capsys.readouterr().err
    assert (mine / "index.html").read_text() == "mine"
    assert main(["render", str(mine), "-o", str(tmp_path / "page.html")]) == 0
    (mine / "index.html").unlink()
    for _ in range(2):  # a page of ours is written again
        assert main(["render", str(mine / "results.json")]) == 0
    assert (mine / MARKER).read_text().splitlines()[1:] == ['"index.html"']


def test_the_folder_of_a_run_that_still_runs_is_left_alone(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The files belong to the run until it ends."""
    running = OwnFolder.enter(whole)
    assert main(["render", str(whole)]) == 4
    assert "another run is writing into this folder" in capsys.readouterr().err
    running.close()
    assert main(["render", str(whole)]) == 0
