"""No text of an engine, a server or a case file becomes markup, a command, code or a control character in any output.

Every string of a case, and of results, is replaced by hostile text, one at a time and all at once. What is rendered has
the structure of the same output with harmless text.
"""

from __future__ import annotations

import datetime
import functools
import io
import itertools
import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from support import report_samples
from support.hostile_text import (
    HOSTILE,
    MARK,
    SURROGATE,
    Variants,
    benign,
    hostile,
    html_is_ours,
    markdown_is_ours,
    python_is_ours,
    shows_no_control,
    terminal_is_ours,
    xml_is_ours,
)
from support.nightly import with_samples
from support.paths import ROOT
from support.side_by_side_samples import source

from coldproof.harness.case.bug_report import bug_report
from coldproof.harness.case.finding_records import CASE
from coldproof.harness.case.known_issue_proposals import propose, to_toml
from coldproof.harness.case.reproducer.script import reproducer
from coldproof.harness.schema.case import Case, read_case
from coldproof.harness.schema.results import Results
from coldproof.harness.session.terminal.terminal import Terminal
from coldproof.harness.workload.steps import Workload
from coldproof.harness.workload.validity import is_valid
from coldproof.reports.exports.badge import badge_svg
from coldproof.reports.exports.case_trace import trace_json
from coldproof.reports.exports.ctrf import ctrf_json
from coldproof.reports.exports.junit import junit_xml
from coldproof.reports.exports.markdown_summary import summary_markdown
from coldproof.reports.format.shell import command_line
from coldproof.reports.run_report.run_report import render_html
from coldproof.reports.side_by_side import kinds
from coldproof.reports.side_by_side.columns import Explanation
from coldproof.reports.side_by_side.markdown import side_by_side_markdown
from coldproof.reports.side_by_side.matrix import Made, SideBySide, side_by_side
from coldproof.reports.side_by_side.page import render_side_by_side

CASES = sorted((ROOT / "findings").glob(f"*/*/{CASE}"))
TODAY = datetime.date(2030, 1, 1)


def accepted(case: Case) -> None:
    """Raise ValueError for a case whose workload is invalid."""
    workload = msgspec.convert(case.workload, Workload)
    if not is_valid(workload):
        raise ValueError("no workload")


@functools.cache
def variants_of(path: Path) -> Variants:
    """Return the variants of a finding's case. They are cached, because each replaceable string has to be tried
    first.
    """
    return Variants(read_case(path), accepted)


def largest_of_each_engine() -> list[Path]:
    """Return a case of each engine: the one with most different strings."""
    found: dict[str, Path] = {}
    for path in sorted(CASES, key=lambda path: path.stat().st_size):
        found[read_case(path).engine] = path
    return list(found.values())


LARGEST = largest_of_each_engine()
EACH_PUSH = 10  # on each push every tenth string of a case is replaced, at night every one


def identity(path: Path) -> str:
    """Return the id of a test."""
    return f"{path.parent.parent.name}-{path.parent.name}"


def outputs(case: Case, text: str) -> tuple[str, str]:
    """Return the script and the bug report of a case. `text`: the statement and the environment."""
    return reproducer(case), bug_report(case, statement=text, environment={text: text, "torch": text})


def case_is_ours(bad: tuple[str, str], good: tuple[str, str]) -> None:
    """Check the script and the bug report of a case."""
    python_is_ours(bad[0], good[0])
    markdown_is_ours(bad[1], good[1])


@pytest.mark.parametrize("path", with_samples(CASES, *LARGEST), ids=identity)
def test_all_strings_of_a_case_at_once(path: Path) -> None:
    """The script and the bug report of every finding's case stay intact with all strings replaced at once."""
    variants, case = variants_of(path), read_case(path)
    assert len(variants.open) > 100
    for kept in ((), (case.engine, case.cell, *case.engine_config)):  # by these the engine's own templates are found
        bad, good = (variants.all(text, kept=kept) for text in (hostile, benign))
        case_is_ours(outputs(bad, HOSTILE), outputs(good, "plain"))


@pytest.mark.parametrize(
    "step", [EACH_PUSH, pytest.param(1, marks=pytest.mark.nightly)], ids=["a part of them", "all of them"]
)
@pytest.mark.parametrize("path", with_samples(LARGEST, *LARGEST[:2]), ids=identity)
def test_each_string_of_a_case(path: Path, step: int) -> None:
    """Each string is replaced alone, so that no other replaced string stops the output earlier."""
    unchanged = outputs(read_case(path), "plain")
    for name, good, bad in itertools.islice(variants_of(path).each(), 0, None, step):
        written = outputs(bad, "plain")
        try:
            if written != unchanged:
                case_is_ours(written, outputs(good, "plain"))
        except AssertionError as problem:
            raise AssertionError(f"with {name!r} replaced: {problem}") from problem


def everything() -> Results:
    """Return results with something in every section of the report."""
    cases = [read_case(path) for path in LARGEST]
    waivers = [report_samples.waiver(state) for state in ("used", "stale", "expired")]
    found = report_samples.results(*cases, waivers=waivers, growth=[], problem="stopped by hand")
    return msgspec.json.decode(msgspec.json.encode(found), type=Results)


def readable(results: Results) -> None:
    """Raise ValueError for results with a case that no run can have."""
    for case in results.cases:
        accepted(case)


@pytest.fixture(scope="module")
def results() -> Variants:
    """Return results in which strings are replaced."""
    found = Variants(everything(), readable)
    assert len(found.open) > 500
    return found


class Capture:
    """Stands for pytest's terminal reporter."""

    def __init__(self) -> None:
        self.written = io.StringIO()
        self._tw = SimpleNamespace(_file=self.written)

    def ensure_newline(self) -> None:
        """Do nothing: each line is complete."""


def on_terminal(results: Results, folder: Path) -> str:
    """Return what a run prints at its end."""
    reporter = Capture()
    Terminal(reporter, None).print_summary(results, folder)
    return reporter.written.getvalue()


def proposals(results: Results) -> str:
    """Return the proposed known issues as TOML."""
    return to_toml(propose(results, today=TODAY), results, results.waivers, folder=Path("report"))


def toml_is_ours(text: str, like: str) -> None:
    """Check that both have the same entries with the same keys."""
    mine, wanted = tomllib.loads(text), tomllib.loads(like)
    assert [set(one) for one in mine.get("issue", [])] == [set(one) for one in wanted.get("issue", [])]
    assert set(mine) == set(wanted)
    shows_no_control(text)


def json_is_ours(text: str, like: str) -> None:
    """Check that both have the same structure, and that no text has a control character."""
    assert structure(json.loads(text)) == structure(json.loads(like))
    shows_no_control(text)


def structure(value: Any) -> Any:
    """Return plain data with each text replaced by its type, without the keys, which may be names of counters."""
    if isinstance(value, dict):
        return [structure(one) for one in value.values()]
    return [structure(one) for one in value] if isinstance(value, list) else type(value)


def traces(results: Results) -> str:
    """Return the traces of all cases."""
    return json.dumps([json.loads(trace_json(case)) for case in results.cases], ensure_ascii=False)


def beside(results: Results) -> SideBySide:
    """Return the results side by side with those of another engine."""
    return side_by_side([source(results), source(everything())], kinds.ENGINES)


def compared(results: Results) -> SideBySide:
    """Return the results as the earlier of two runs, with all that a command may know of a run."""
    old = source(results, said=(results.headline,), explained={case.id: explained(case) for case in results.cases})
    return side_by_side(
        [old, source(everything())],
        kinds.TWO_RUNS,
        Made(headline=results.headline, command=results.command, missing=(results.problem,)),
    )


def explained(case: Case) -> Explanation:
    """Return a cause in the words of the case."""
    return Explanation(case.sentence, case.signature)


FORMATS: dict[str, tuple[Callable[[Results], str], Callable[[str, str], Any]]] = {
    "page": (render_html, html_is_ours),
    "summary": (functools.partial(summary_markdown, largest=10**6), markdown_is_ours),  # so that nothing is left out
    "junit": (junit_xml, xml_is_ours),
    "ctrf": (ctrf_json, json_is_ours),
    "traces": (traces, json_is_ours),
    "badge": (badge_svg, xml_is_ours),
    "terminal": (lambda results: on_terminal(results, Path("report")), terminal_is_ours),
    "known issues": (proposals, toml_is_ours),
    "comparison": (lambda results: side_by_side_markdown(compared(results)), markdown_is_ours),
    "side by side": (lambda results: side_by_side_markdown(beside(results)), markdown_is_ours),
    "side-by-side page": (lambda results: render_side_by_side(beside(results)), html_is_ours),
    "comparison page": (lambda results: render_side_by_side(compared(results)), html_is_ours),
}


@pytest.mark.parametrize("name", FORMATS)
def test_all_strings_of_results_at_once(results: Variants, name: str) -> None:
    """Every output format keeps its structure with all strings replaced."""
    render, is_ours = FORMATS[name]
    is_ours(render(results.all(hostile)), render(results.all(benign)))


@pytest.mark.parametrize("name", ["summary", "junit", "ctrf", "badge", "terminal", "known issues"])
def test_each_string_of_results(results: Variants, name: str) -> None:
    """Formats other than pages are tested string by string. Pages escape all values in one place, so one test is
    enough.
    """
    render, is_ours = FORMATS[name]
    for replaced, good, bad in results.each():
        try:
            is_ours(render(bad), render(good))
        except AssertionError as problem:
            raise AssertionError(f"with {replaced!r} replaced: {problem}") from problem


@pytest.mark.parametrize("name", FORMATS)
def test_half_a_character_can_be_written(results: Variants, name: str) -> None:
    """A server can send a lone surrogate in JSON, but no UTF-8 file can contain it."""
    render, _ = FORMATS[name]
    broken = msgspec.convert(surrogates(msgspec.to_builtins(results.all(benign))), Results)
    render(broken).encode()


def surrogates(value: Any) -> Any:
    """Return plain data with a lone surrogate after each harmless text."""
    if isinstance(value, dict):
        return {key: surrogates(one) for key, one in value.items()}
    if isinstance(value, list):
        return [surrogates(one) for one in value]
    return value + SURROGATE if isinstance(value, str) and value.startswith("benign") else value


@pytest.mark.parametrize(
    ("recorded", "shown"),
    [
        ("A=1 python -m vllm --model x --flag '{\"a\": 1}'", "A=1 python -m vllm --model x --flag '{\"a\": 1}'"),
        (f"serve; {MARK}", f"'serve;' {MARK}"),
        (f"serve $({MARK})", f"serve '$({MARK})'"),
        (f"serve\n{MARK}", f"serve {MARK}"),
        (f"serve '\n{MARK}", f"'serve '\"'\"' {MARK}'"),
        (f"# your server\n{MARK}", f"# your server {MARK}"),
    ],
)
def test_a_recorded_command_is_one_command(recorded: str, shown: str) -> None:
    """Words of a recorded command are quoted where necessary. A command that is valid stays unchanged."""
    assert command_line(recorded) == shown
