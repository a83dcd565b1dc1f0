"""`coldproof compare` and `coldproof side-by-side`: they write what was asked for, link it, and exit as documented."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import report_samples as samples
from support.page import Page
from support.paths import ROOT
from support.side_by_side_samples import pair, run, source

from coldproof.harness.cli import main as command_line
from coldproof.harness.schema.results import write_results
from coldproof.reports.exports.write import write_all
from coldproof.reports.side_by_side import kinds
from coldproof.reports.side_by_side.markdown import side_by_side_markdown
from coldproof.reports.side_by_side.matrix import side_by_side
from coldproof.reports.side_by_side.page import render_side_by_side

FAILING = samples.results(samples.case())
BOTH_CELLS = samples.requirement("LORA-1", "in-place reload", samples.cell("hybrid"), samples.cell())
CLEAN = samples.results(requirements=[BOTH_CELLS, *FAILING.requirements[1:]])


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the report folders of two runs, of which each test gets a copy."""
    folder = tmp_path_factory.mktemp("written")
    write_all(run(), folder / "vllm")
    write_all(run("SGLang", "0.5"), folder / "sglang")
    return folder


@pytest.fixture
def reports(written: Path, tmp_path: Path) -> Path:
    """A folder with the report folders of two runs."""
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    return tmp_path


# compare


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """A clean run and one with a violation."""
    write_results(CLEAN, tmp_path / "clean.json")
    write_results(FAILING, tmp_path / "failing.json")
    return str(tmp_path / "clean.json"), str(tmp_path / "failing.json")


def test_without_a_file_the_markdown_is_on_stdout(
    files: tuple[str, str], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """In UTF-8."""
    assert command_line.main(["compare", *files]) == 1
    assert (
        capfdbinary.readouterr().out
        == side_by_side_markdown(side_by_side(pair(CLEAN, FAILING), kinds.TWO_RUNS)).encode()
    )


def test_it_runs_in_a_locale_that_has_no_arrows(files: tuple[str, str]) -> None:
    """As a process."""
    ran = subprocess.run(
        [sys.executable, "-m", "coldproof", "compare", *files],
        capture_output=True,
        check=False,
        cwd=ROOT,
        env={"PYTHONIOENCODING": "ascii", "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
    )
    assert (ran.returncode, ran.stderr) == (1, b"")
    assert ran.stdout.decode() == side_by_side_markdown(side_by_side(pair(CLEAN, FAILING), kinds.TWO_RUNS))


@pytest.mark.parametrize(("order", "code"), [((0, 1), 1), ((1, 0), 0), ((0, 0), 0), ((1, 1), 0)])
def test_the_exit_code_says_whether_anything_is_new(order: tuple[int, int], code: int, files: tuple[str, str]) -> None:
    """A violation of yesterday is not new, and its fix no failure."""
    assert command_line.main(["compare", *(files[place] for place in order)]) == code


def test_files_are_written_and_stdout_stays_empty(
    files: tuple[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Both at once, with the exit code of the comparison."""
    page, text = tmp_path / "c.html", tmp_path / "c.md"
    assert command_line.main(["compare", *files, "--html", str(page), "--markdown", str(text)]) == 1
    sources = [
        source(CLEAN, "", "clean.json", label="Before"),
        source(FAILING, "", "failing.json", label="Now"),
    ]
    shown = side_by_side(sources, kinds.TWO_RUNS)
    assert page.read_text(encoding="utf-8") == render_side_by_side(shown)
    assert text.read_text(encoding="utf-8") == side_by_side_markdown(shown)
    assert capfd.readouterr() == ("", "")


def test_a_full_disk_behind_stdout_is_exit_code_3(files: tuple[str, str]) -> None:
    """And not Python's own code for a stream that it could not flush."""
    with open("/dev/full", "wb") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "coldproof", "compare", *files],
            stdout=full,
            stderr=subprocess.PIPE,
            cwd=ROOT,
        )
    assert ran.returncode == 3
    assert ran.stderr == b"coldproof compare: cannot write to stdout: No space left on device\n"


def test_compare_links_the_reports_of_both_runs_and_never_replaces_one(
    reports: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If they are below or beside its page."""
    monkeypatch.chdir(reports)
    assert command_line.main(["compare", "vllm", "sglang", "--html", "changes.html"]) == 0
    page = Page(Path("changes.html").read_text(encoding="utf-8"))
    links = {link.partition("#")[0] for link in page.attributes("href")} - {""}
    assert links == {"vllm/index.html", "sglang/index.html"}
    assert command_line.main(["compare", "vllm", "sglang", "--html", "vllm/index.html"]) == 4
    assert "vllm/index.html is the report of one of the runs" in capsys.readouterr().err


# side-by-side


def test_report_folders_and_files_are_read_alike(reports: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Both forms are written as they were asked for, stdout stays empty, verdicts do not matter to the exit code."""
    runs = [str(reports / "vllm"), str(reports / "sglang" / "results.json")]
    page, text = reports / "index.html", reports / "side.md"
    assert command_line.main(["side-by-side", *runs, "--out", str(page), "--markdown", str(text)]) == 0
    assert capfd.readouterr() == ("", "")
    sources = [
        source(run(), "vllm/index.html", "vllm/results.json"),
        source(run("SGLang", "0.5"), "sglang/index.html", "sglang/results.json"),
    ]
    shown = side_by_side(sources, kinds.ENGINES)
    assert page.read_text(encoding="utf-8") == render_side_by_side(shown)
    assert text.read_text(encoding="utf-8") == side_by_side_markdown(shown)


def test_without_an_option_the_page_is_written_here(reports: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With Markdown alone it is not."""
    monkeypatch.chdir(reports)
    assert command_line.main(["side-by-side", "vllm", "--markdown", "side.md"]) == 0
    assert not (reports / "index.html").exists()
    assert command_line.main(["side-by-side", "vllm"]) == 0
    assert 'href="vllm/index.html"' in (reports / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("out", "link", "name"),
    [
        ("all.html", "vllm/index.html", "vllm/results.json"),
        ("pages/all.html", "../vllm/index.html", "../vllm/results.json"),
        ("deep/pages/all.html", None, "vllm/results.json"),
    ],
)
def test_a_link_is_made_where_the_report_is_below_or_beside(
    out: str, link: str | None, name: str, reports: Path
) -> None:
    """Anywhere else it would break as soon as either is moved, and tell where this machine keeps its files."""
    target = reports / out
    target.parent.mkdir(parents=True, exist_ok=True)
    assert command_line.main(["side-by-side", str(reports / "vllm"), "--out", str(target)]) == 0
    page = Page(target.read_text(encoding="utf-8"))
    links = {other.partition("#")[0] for other in page.attributes("href")} - {""}
    assert links == ({link} if link else set())
    assert (f"report at {name}" in page.text) is (link is None)
    assert str(reports) not in target.read_text(encoding="utf-8").replace(samples.results().command, "")


def test_a_run_without_a_page_of_its_own_has_no_link(tmp_path: Path) -> None:
    """A results.json may have been copied alone."""
    write_results(run(), tmp_path / "odd:name.json")
    assert command_line.main(["side-by-side", str(tmp_path / "odd:name.json"), "--out", str(tmp_path / "x.html")]) == 0
    page = Page((tmp_path / "x.html").read_text(encoding="utf-8"))
    assert "report at odd:name.json" in page.text
    assert not [link for link in page.attributes("href") if not link.startswith("#")]


def test_a_hostile_folder_is_a_plain_link(tmp_path: Path) -> None:
    """A name with a colon is no scheme, and one that is no UTF-8 is written out."""
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/javascript:alert(1)\xff&\"'")
    write_all(run(), Path(folder))
    assert command_line.main(["side-by-side", folder, "--out", str(tmp_path / "x.html")]) == 0
    page = Page((tmp_path / "x.html").read_text(encoding="utf-8"))
    links = {link.partition("#")[0] for link in page.attributes("href")} - {""}
    assert links == {"javascript%3Aalert%281%29%FF%26%22%27/index.html"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["."], "the folder has no results.json"),
        (["vllm", "vllm/results.json"], "vllm and vllm/results.json are the same run"),
        (["vllm", "--out", "vllm/index.html"], "vllm/index.html is the report of one of the runs"),
        (["vllm", "--markdown", "vllm/results.json"], "vllm/results.json is the report of one of the runs"),
    ],
)
def test_what_would_mislead_or_destroy_is_refused(
    arguments: list[str], says: str, reports: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line, with exit code 4, and no file is touched."""
    monkeypatch.chdir(reports)
    before = {file: file.read_bytes() for file in reports.rglob("*") if file.is_file()}
    assert command_line.main(["side-by-side", *arguments]) == 4
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert says in said
    assert {file: file.read_bytes() for file in reports.rglob("*") if file.is_file()} == before


# Both


@pytest.mark.parametrize(
    "words", [["compare", "vllm", "BROKEN"], ["compare", "BROKEN", "vllm"], ["side-by-side", "BROKEN"]]
)
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file"),
        (b"{nope", "malformed"),
        (b"\xff\xfe", "malformed"),
        (b"[]", "not a results.json file"),
        (b'{"schema_version": 99}', "its schema_version is 99; this Coldproof reads 2"),
        (b'{"schema_version": 2}', "not a results.json file: Object missing required field"),
    ],
)
def test_a_run_that_cannot_be_read_is_one_line_and_exit_code_4(
    words: list[str],
    content: bytes | None,
    says: str,
    reports: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Which names the file, be it the old or the new one; nothing is written."""
    monkeypatch.chdir(reports)
    if content is not None:
        Path("BROKEN").write_bytes(content)
    assert command_line.main([*words, "--markdown", "x.md"]) == 4
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert says in said.err
    assert "BROKEN" in said.err
    assert not Path("x.md").exists()


@pytest.mark.parametrize(
    ("words", "option"),
    [
        *(("compare vllm sglang", option) for option in ("--html", "--markdown")),
        *(("side-by-side vllm", option) for option in ("--out", "--markdown")),
    ],
)
def test_what_cannot_be_written_is_exit_code_3(
    words: str, option: str, reports: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line, as everywhere; it outranks what is new."""
    monkeypatch.chdir(reports)
    assert command_line.main([*words.split(), option, "no/file"]) == 3
    assert re.fullmatch(rf"coldproof {words.split()[0]}: cannot write no/file: .*\n", capsys.readouterr().err)


@pytest.mark.parametrize(
    "words",
    [
        "compare",
        "compare a",
        "compare a b c",
        "compare a b --pdf x",
        "side-by-side",
        "side-by-side a --pdf x",
        "side-by-side a --out",
    ],
)
def test_wrong_usage_is_exit_code_4(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In one line."""
    with pytest.raises(SystemExit) as stop:
        command_line.main(words.split())
    assert stop.value.code == 4
    assert capsys.readouterr().err.count("\n") == 1
