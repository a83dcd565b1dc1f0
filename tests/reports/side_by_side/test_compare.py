"""The comparison as Markdown, as a page and as a command: contents, escaping and exit codes."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from support import report_samples as samples
from support.page import Page
from support.paths import ROOT
from support.side_by_side_samples import pair, source

from coldproof.harness.cli import main as command_line
from coldproof.reports.schema.results import Results, write_results
from coldproof.reports.schema.verdict import Verdict
from coldproof.reports.side_by_side import kinds
from coldproof.reports.side_by_side.changes import ChangeKind
from coldproof.reports.side_by_side.markdown import side_by_side_markdown
from coldproof.reports.side_by_side.matrix import SideBySide, side_by_side
from coldproof.reports.side_by_side.page import render_side_by_side
from coldproof.reports.side_by_side.slowdowns import Slowdown

FAILING = samples.results(samples.case())
BOTH_CELLS = samples.requirement("LORA-1", "in-place reload", samples.cell("hybrid"), samples.cell())
CLEAN = samples.results(requirements=[BOTH_CELLS, *FAILING.requirements[1:]])


def compare(old: Results, new: Results) -> SideBySide:
    """The page of two runs."""
    return side_by_side(pair(old, new), kinds.TWO_RUNS)


def everything() -> tuple[Results, Results]:
    """Return two runs with a finding of every kind, warnings and slowdowns."""
    fails, waived = Verdict.VIOLATED, Verdict.KNOWN_ISSUE
    ways = {
        ChangeKind.NEWLY_VIOLATED: (Verdict.CONFORMS, fails),
        ChangeKind.FAILS_DIFFERENTLY: (fails, fails),
        ChangeKind.NO_LONGER_EXERCISED: (fails, Verdict.NOT_EXERCISED),
        ChangeKind.WAIVER_REMOVED: (waived, fails),
        ChangeKind.STILL_VIOLATED: (fails, fails),
        ChangeKind.NEWLY_WAIVED: (fails, waived),
        ChangeKind.STILL_WAIVED: (waived, waived),
        ChangeKind.FIXED: (fails, Verdict.CONFORMS),
        ChangeKind.NEWLY_EXERCISED: (Verdict.UNSUPPORTED, Verdict.CONFORMS),
        ChangeKind.UNCHANGED: (Verdict.CONFORMS, Verdict.CONFORMS),
    }
    runs = []
    for side in (0, 1):
        rows = {kind.value: samples.cell(verdict=way[side], drawn=10.0 + 90 * side) for kind, way in ways.items()}
        runs.append(
            samples.results(
                *(
                    samples.case(
                        f"{name}-{side}",
                        requirement=name,
                        known_issue="keyed by path" if row.verdict is waived else None,
                        signature=f"signature{side if name == ChangeKind.FAILS_DIFFERENTLY else ''}",
                    )
                    for name, row in rows.items()
                    if row.verdict in (fails, waived)
                ),
                requirements=[samples.requirement(name, f"title of {name}", row) for name, row in rows.items()],
                profile="ci" if side else "smoke",
            )
        )
    return runs[0], runs[1]


@pytest.fixture(scope="module")
def full() -> SideBySide:
    """Return a comparison with everything that one can have."""
    return compare(*everything())


def section(text: str, title: str) -> str:
    """Return a section of the Markdown, without its heading."""
    return text.split(f"### {title}\n\n", 1)[1].split("\n### ", 1)[0]


# Markdown


def test_every_kind_has_its_section_worst_first(full: SideBySide) -> None:
    """Unchanged requirements are only counted; the page has the rest."""
    found = re.findall(r"^### (.*)$", side_by_side_markdown(full), flags=re.MULTILINE)
    kinds = [kind.value.capitalize() for kind in ChangeKind if kind is not ChangeKind.UNCHANGED]
    assert found == ["What can be compared", *kinds, "Slower", "Requirements", "Why"]
    assert "1 conform in both runs, 0 have no verdict in either" in side_by_side_markdown(full)


def test_a_finding_has_its_transition_place_and_replay() -> None:
    """The entry has what a maintainer needs first."""
    text = section(side_by_side_markdown(compare(CLEAN, FAILING)), "Newly violated")
    for part in (
        "- **LORA-1** stale state: Request r3",
        "  - CONFORMS → VIOLATED, in tiny-llama",
        "  - Signature: `LORA-1|stale state|burst,reload,burst`",
        "  - Cases: none before, 7c21a0f3 now",
        "  - Replay: `coldproof replay coldproof-report/cases/7c21a0f3.json`",
    ):
        assert part in text


def test_a_different_failure_names_the_earlier_one(full: SideBySide) -> None:
    """A waiver is shown with its reason."""
    text = side_by_side_markdown(full)
    assert "Did not occur this time: `signature0`" in section(text, "Fails in a different way")
    assert "Known issue: keyed by path" in section(text, "Newly waived")
    assert "in tiny-llama" in section(text, "No longer exercised")


def test_a_slowdown_is_shown_with_its_figures(full: SideBySide) -> None:
    """A factor is shown with the counts that it is based on."""
    assert "by a factor of 10.0 (1\u202f312 and 1\u202f312 requests)" in section(side_by_side_markdown(full), "Slower")


def test_the_markdown_is_bounded() -> None:
    """CI systems refuse a summary that is too long."""
    names = [f"R-{number}" for number in range(300)]
    conforms = samples.results(requirements=[samples.requirement(name, "x") for name in names])
    comparison = compare(conforms, samples.results(requirements=[]))
    slow = Slowdown(runs=("Before", "Now"), what="x", before="1", now="2", factor=2.0, counted="9 and 9 requests")
    text = side_by_side_markdown(dataclasses.replace(comparison, slower=[slow] * 300))
    assert "- and 250 more" in text
    assert "And 250 more." in text
    assert text.count("by a factor") == 50


# The page


def test_the_page_has_every_kind_with_its_meaning(full: SideBySide) -> None:
    """Each kind has a section, and links lead to it. What did not change is counted, and stands in the matrix."""
    page = Page(render_side_by_side(full))
    assert page.open == []
    for kind in ChangeKind:
        assert (kind.meaning in page.text) is (kind is not ChangeKind.UNCHANGED)
        assert f"1 {kind.value}" in page.text
    ids = list(page.attributes("id"))
    assert len(ids) == len(set(ids))
    assert {link[1:] for link in page.attributes("href") if link.startswith("#")} <= set(ids)
    assert (
        "Comparability warnings: Not comparable with the other runs: Now. Differs from Before in: profile." in page.text
    )
    assert "by a factor of 10.0" in page.text


def test_the_page_of_two_equal_runs_states_that() -> None:
    """The page has no empty table."""
    text = Page(render_side_by_side(compare(CLEAN, CLEAN))).text
    assert "NO NEW FAILURES" in text
    assert "No requirement changed." in text
    assert "to be distinguished from noise" in text
    assert "Comparability warnings" not in text


def test_the_same_runs_give_the_same_bytes(tmp_path: Path) -> None:
    """The order of requirements and cases in the files does not matter."""
    old, new = everything()
    turned = msgspec.structs.replace(new, requirements=new.requirements[::-1], cases=new.cases[::-1])
    assert render_side_by_side(compare(old, new)) == render_side_by_side(compare(old, turned))
    assert side_by_side_markdown(compare(old, new)) == side_by_side_markdown(compare(old, turned))


# The command


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """Write a conforming run and one with a violation, and return their files."""
    write_results(CLEAN, tmp_path / "clean.json")
    write_results(FAILING, tmp_path / "failing.json")
    return str(tmp_path / "clean.json"), str(tmp_path / "failing.json")


def test_without_a_file_the_markdown_is_on_stdout(
    files: tuple[str, str], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """The output is UTF-8."""
    assert command_line.main(["compare", *files]) == 1
    assert capfdbinary.readouterr().out == side_by_side_markdown(compare(CLEAN, FAILING)).encode()


def test_the_command_runs_in_an_ascii_locale(files: tuple[str, str]) -> None:
    """The command is run as a process."""
    ran = subprocess.run(
        [sys.executable, "-m", "coldproof", "compare", *files],
        capture_output=True,
        check=False,
        cwd=ROOT,
        env={"PYTHONIOENCODING": "ascii", "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
    )
    assert (ran.returncode, ran.stderr) == (1, b"")
    assert ran.stdout.decode() == side_by_side_markdown(compare(CLEAN, FAILING))


@pytest.mark.parametrize(("order", "code"), [((0, 1), 1), ((1, 0), 0), ((0, 0), 0), ((1, 1), 0)])
def test_the_exit_code_shows_whether_anything_is_new(order: tuple[int, int], code: int, files: tuple[str, str]) -> None:
    """An old violation is not new, and a fix is no failure."""
    assert command_line.main(["compare", *(files[place] for place in order)]) == code


def test_files_are_written_and_stdout_stays_empty(
    files: tuple[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Both files are written, and the exit code is that of the comparison."""
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


@pytest.mark.parametrize("option", ["--html", "--markdown"])
def test_what_cannot_be_written_is_exit_code_3(
    option: str, files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The write error takes precedence over new failures."""
    assert command_line.main(["compare", *files, option, str(tmp_path / "no" / "file")]) == 3
    assert re.fullmatch(r"coldproof compare: cannot write .*no/file: .*\n", capsys.readouterr().err)


def test_a_full_disk_behind_stdout_is_exit_code_3(files: tuple[str, str]) -> None:
    """Python has an exit code of its own for a stream that cannot be flushed."""
    with open("/dev/full", "wb") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "coldproof", "compare", *files],
            stdout=full,
            stderr=subprocess.PIPE,
            cwd=ROOT,
        )
    assert ran.returncode == 3
    assert ran.stderr == b"coldproof compare: cannot write to stdout: No space left on device\n"


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file"),
        (b"{nope", "malformed"),
        (b"\xff\xfe", "malformed"),
        (b'{"schema_version": 99}', "its schema_version is 99; this Coldproof reads 2"),
        (b'{"schema_version": 2}', "missing required field"),
    ],
)
def test_a_run_that_cannot_be_read_is_one_line_and_exit_code_4(
    place: int, content: bytes | None, says: str, files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the file, which may be the old or the new one."""
    broken = Path(files[place])
    broken.unlink()
    if content is not None:
        broken.write_bytes(content)
    assert command_line.main(["compare", *files]) == 4
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert says in said.err
    assert broken.name in said.err


@pytest.mark.parametrize("arguments", [[], ["one.json"], ["a", "b", "c"], ["a", "b", "--pdf", "x"]])
def test_wrong_usage_is_exit_code_4(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The error is one line."""
    with pytest.raises(SystemExit) as stop:
        command_line.main(["compare", *arguments])
    assert stop.value.code == 4
    assert capsys.readouterr().err.count("\n") == 1
