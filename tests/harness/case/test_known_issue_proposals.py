"""Proposed known issues name what no waiver covers, waive nothing before a review, and can always be read."""

from __future__ import annotations

import datetime
import io
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from _pytest.terminal import TerminalReporter
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from support import report_samples as samples
from support.run_events import UNREMARKABLE

from coldproof.harness.case.known_issue_proposals import (
    NO_VERSION,
    Proposal,
    comments,
    literal,
    propose,
    proposed_file,
    to_toml,
    version_range,
    write_proposals,
)
from coldproof.harness.case.known_issues import Waivers, read_known_issues
from coldproof.harness.options import Options, UsageError
from coldproof.harness.schema.attribution import Attribution, Basis
from coldproof.harness.schema.case import Case
from coldproof.harness.schema.results import RequirementResult, Results, read_results
from coldproof.harness.schema.verdict import Verdict
from coldproof.harness.selection.validation import check_options
from coldproof.harness.session.conductor import ConformanceRun, Role
from coldproof.harness.session.terminal.terminal import Terminal
from coldproof.reports.assemble.causes import fingerprint
from coldproof.reports.format.text import storable

TODAY = datetime.date(2026, 3, 1)
STALE = "stale state; in-place reload; same path; between requests"
OUT = Path("out")
# Texts that an engine could write: quotes, patterns, ends of a line, a table or a file, invisible characters.
HOSTILE = st.text() | st.sampled_from(
    [
        '"""',
        "'''",
        "a*[b]?",
        "a\\",
        "\\u0041",
        "x\r\ny",
        '"\nlink = "https://x"\n[[issue]]',
        "\x00\x7f\x85\u202e\ufeff",
        "\ud83d",
    ]
)


def case(**changes: Any) -> Case:
    """Return a violation in the default cell."""
    facts = {"requirement": "LORA-3", "cell": "default", "signature": STALE, "sentence": "A was answered for B."}
    return samples.case(**{**facts, **changes})


def requirement(*cells: str, name: str = "LORA-3", conforming: tuple[str, ...] = ()) -> RequirementResult:
    """Return a requirement that is violated in `cells` and conforms in `conforming`."""
    rows = [samples.cell(cell, Verdict.VIOLATED) for cell in cells] + [samples.cell(cell) for cell in conforming]
    return samples.requirement(name, "a title", *rows)


def proposed(*cases: Case, ran: tuple[RequirementResult, ...] = (requirement("default"),)) -> list[Proposal]:
    """Return what a run with these cases proposes."""
    return propose(samples.results(*cases, requirements=list(ran)), today=TODAY)


def proposals_text(*cases: Case, **changes: Any) -> str:
    """Return the text of the proposals of a run with these cases."""
    results = samples.results(*cases, **{"requirements": [requirement("default")], **changes})
    return to_toml(propose(results, today=TODAY), results, results.waivers, folder=OUT)


def write_reviewed(folder: Path, text: str, link: str = "https://example.org/issues/1") -> Path:
    """Write the file after a person has given every entry a link, and return its path."""
    path = folder / "reviewed.toml"
    path.write_bytes(text.replace('\nlink = ""\n', f'\nlink = "{link}"\n').encode())
    return path


def test_a_violation_without_a_waiver_becomes_an_entry() -> None:
    """The entry has all that a person needs to accept it except the link, which the person must find."""
    (entry,) = tomllib.loads(proposals_text(case()))["issue"]
    assert entry == {
        "requirement": "LORA-3",
        "cell": "default",
        "signature": STALE,
        "fingerprint": fingerprint(STALE),
        "versions": ">=0.32.dev0,<0.33.dev0",
        "reason": "A was answered for B.",
        "link": "",
        "expires": datetime.date(2026, 5, 30),
    }


def test_the_file_says_what_a_person_has_to_do() -> None:
    """It names the case, and says that an entry without a link or a reason is refused."""
    text = proposals_text(case(id="LORA-3-abc"))
    assert "# Review out/cases/LORA-3-abc.json\n[[issue]]\n" in text
    assert "Review each entry: read its case" in text
    assert "refuses a known-issues file" in text
    assert NO_VERSION not in text


@pytest.mark.parametrize(
    "changes",
    [
        {"known_issue": "a reason (a link)"},
        {"reproduction": msgspec.structs.replace(samples.case().reproduction, fresh_failed=0)},
        {"reproduction": msgspec.structs.replace(samples.case().reproduction, fresh_oracle_agrees=False)},
    ],
)
def test_what_is_waived_or_not_proven_is_not_proposed(changes: dict[str, Any]) -> None:
    """A waiver for an inconclusive case would waive nothing."""
    assert proposed(case(**changes)) == []
    assert "No proposals" in proposals_text(case(**changes))


def cells_proposed(failed: tuple[str, ...], ran: RequirementResult) -> list[str]:
    """Return the cells of the entries for a requirement that failed in these cells."""
    return [one.issue.cell for one in proposed(*(case(id=cell, cell=cell) for cell in failed), ran=(ran,))]


@pytest.mark.parametrize(
    ("failed", "ran", "cells"),
    [
        (("default", "tight"), requirement("default", "tight"), ["*"]),
        (("default", "tight"), requirement("default", "tight", conforming=("sync",)), ["default", "tight"]),
        (("default",), requirement("default"), ["default"]),
        (("default", "default"), requirement("default"), ["default"]),
        (("a[0]*",), requirement("a[0]*"), ["a[[]0][*]"]),
    ],
)
def test_an_entry_is_for_every_cell_only_if_each_of_several_failed(
    failed: tuple[str, ...], ran: RequirementResult, cells: list[str]
) -> None:
    """One cell says nothing of other cells, and the name of a cell is not a pattern."""
    assert cells_proposed(failed, ran) == cells


def test_a_cell_that_never_ran_does_not_keep_an_entry_narrow() -> None:
    """Its engine lacked a feature, or the run ended before it."""
    ran = requirement("default", "tight")
    idle = samples.cell("sync", Verdict.UNSUPPORTED, examples=0)
    ran = msgspec.structs.replace(ran, cells=[*ran.cells, idle])
    assert cells_proposed(("default", "tight"), ran) == ["*"]


def test_cases_of_one_cause_in_one_cell_are_one_entry() -> None:
    """The entry lists all of them for review. Another requirement or signature has its own entry."""
    found = proposed(
        case(id="one"),
        case(id="two", sentence="Another one."),
        case(id="three", requirement="LORA-1"),
        case(id="four", signature="crash; no reload"),
    )
    assert [one.cases for one in found] == [("one", "two"), ("three",), ("four",)]
    assert found[0].issue.reason == "A was answered for B."


@pytest.mark.parametrize(
    ("version", "series"),
    [
        ("0.32.0", ">=0.32.dev0,<0.33.dev0"),
        ("0.33.0rc1", ">=0.33.dev0,<0.34.dev0"),
        ("0.32.1.dev7+g0123abc.cpu", ">=0.32.dev0,<0.33.dev0"),
        ("5", ">=5.0.dev0,<5.1.dev0"),
        ("2!1.9.post3", ">=2!1.9.dev0,<2!1.10.dev0"),
        ("unknown build", ""),
        ("", ""),
        (None, ""),
    ],
)
def test_an_entry_is_for_the_engines_minor_series(version: str | None, series: str) -> None:
    """The range contains the version of the engine itself."""
    assert version_range(version) == series
    if series:
        assert SpecifierSet(series).contains(Version(version or ""), prereleases=True)


def test_an_engine_without_a_version_has_a_comment() -> None:
    """Its entry would apply to nothing, so a comment says why."""
    text = proposals_text(case(engine_version=None))
    assert f"# {NO_VERSION}" in text
    assert tomllib.loads(text)["issue"][0]["versions"] == ""


def test_a_proposal_without_review_is_refused(tmp_path: Path) -> None:
    """Nobody has reviewed it, so the file cannot be used, and the error says which entry needs what."""
    path = tmp_path / "vllm.proposed.toml"
    path.write_text(proposals_text(case()))
    with pytest.raises(UsageError, match="entry 1, for 'LORA-3', has an empty link"):
        read_known_issues(path)


def test_a_known_cause_is_proposed_by_its_name(tmp_path: Path) -> None:
    """Its cases are one entry, whatever their signatures. Without a reason, the file is refused."""
    name = "vllm/adapter-key-lacks-the-contents"
    known = Attribution(basis=Basis.REPAIR, finding=name)
    cases = (case(id="a", attribution=known), case(id="b", signature="x", attribution=known), case(id="c"))
    text = proposals_text(*cases)
    read = tomllib.loads(text)
    assert read["accepted"] == [
        {
            "finding": name,
            "versions": ">=0.32.dev0,<0.33.dev0",
            "reason": "",
            "expires": datetime.date(2026, 5, 30),
        }
    ]
    assert [one["signature"] for one in read["issue"]] == [STALE]
    assert "# Review out/cases/a.json\n# Review out/cases/b.json\n[[accepted]]\n" in text
    path = tmp_path / "vllm.proposed.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=f"accepted finding 1, '{name}', has an empty reason"):
        read_known_issues(path)


@given(signature=HOSTILE, cell=HOSTILE, name=HOSTILE, sentence=HOSTILE.filter(str.strip))
def test_a_reviewed_proposal_waives_its_case_and_no_other(
    signature: str, cell: str, name: str, sentence: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """This holds for any text of an engine, and the file has no other entry."""
    facts = {"requirement": name, "cell": cell, "signature": signature, "sentence": sentence}
    one = msgspec.convert(storable(msgspec.to_builtins(case(**facts))), Case)  # as a run stores it
    path = write_reviewed(
        tmp_path_factory.mktemp("toml"), proposals_text(one, requirements=[requirement(one.cell, name=name)])
    )
    known = read_known_issues(path)
    waivers = Waivers(known, version="0.32.0", today=TODAY)
    assert [issue.reason for issue in known] == [one.sentence]
    assert waivers.waive(one) is known[0]
    for other in ({"requirement": f"{name}1"}, {"cell": f"{one.cell}1"}, {"signature": f"{one.signature}1"}):
        assert waivers.waive(msgspec.structs.replace(one, **other)) is None


@given(HOSTILE)
def test_any_text_survives_toml(text: str) -> None:
    """Every character is kept except lone surrogates, which no file can hold, and no character is invisible."""
    quoted = literal(text)
    assert tomllib.loads(f"key = {quoted}") == {"key": storable(text)}
    assert quoted.isprintable()


@given(HOSTILE)
def test_any_text_is_one_comment(text: str) -> None:
    """A line feed in a path must not begin an entry."""
    assert tomllib.loads(f"{comments([text])}\nkey = 1") == {"key": 1}


def test_stale_and_expired_waivers_are_listed_for_removal() -> None:
    """It is listed in comments, because a person removes it. A waiver that is used or not exercised stays."""
    states = ("used", "stale", "expired", "not exercised", "not applicable")
    text = proposals_text(waivers=[samples.waiver(state, requirement=f"R-{state}") for state in states])
    listed = [line for line in text.splitlines() if line.startswith("# R-")]
    assert [line.split(" in ")[0] for line in listed] == ["# R-stale", "# R-expired"]
    assert "expired on 2027-01-31: it no longer waives anything" in listed[1]
    assert tomllib.loads(text) == {}


@pytest.mark.parametrize(
    ("option", "known", "path"),
    [
        (None, Path("adapters/vllm/known_issues.toml"), None),
        ("", Path("adapters/vllm/known_issues.toml"), OUT / "known_issues.proposed.toml"),
        ("", None, OUT / "known_issues.proposed.toml"),
        ("mine.toml", Path("adapters/vllm/known_issues.toml"), Path("mine.toml")),
    ],
)
def test_proposals_are_written_to_the_requested_file(option: str | None, known: Path | None, path: Path | None) -> None:
    """Without a name they are beside the reports. Without the option there are none."""
    assert proposed_file(option, known, OUT) == path


def test_no_file_is_overwritten(tmp_path: Path) -> None:
    """This includes a file that was created during the run."""
    file = tmp_path / "mine.toml"
    file.write_text("mine")
    with pytest.raises(FileExistsError, match="exists and will not be overwritten"):
        write_proposals(file, samples.results(case()), [], folder=tmp_path, today=TODAY)
    assert file.read_text() == "mine"


@pytest.mark.parametrize(
    ("known", "proposals", "says"),
    [
        ("in use.toml", "in use.toml", "file exists and will not be overwritten; choose another name"),
        (None, "in use.toml", "file exists and will not be overwritten; choose another name"),
        (None, "suites", "must end in .toml; to write the proposals into --report-dir, give the option last"),
        (None, "nowhere/new.toml", "no such folder: "),
        ("out/vllm.proposed.toml", None, "copy the entries that you accept into another file"),
    ],
)
def test_options_that_would_overwrite_a_file_are_refused(
    known: str | None, proposals: str | None, says: str, tmp_path: Path
) -> None:
    """A usage error is raised before anything is written or removed."""
    (tmp_path / "in use.toml").write_text("mine")
    options = Options(
        engine="vllm",
        report_dir=tmp_path / "out",
        known_issues=tmp_path / known if known else None,
        proposals=tmp_path / proposals if proposals else None,
    )
    with pytest.raises(UsageError, match=says):
        check_options(options)


@pytest.mark.parametrize("name", ["new.toml", "out/new.toml", "out/vllm.proposed.toml"])
def test_a_new_file_or_one_that_the_run_removes_is_accepted(name: str, tmp_path: Path) -> None:
    """A run may replace the proposals of an earlier run in the report folder."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "vllm.proposed.toml").write_text("an earlier run's")
    check_options(Options(engine="vllm", report_dir=tmp_path / "out", proposals=tmp_path / name))


def finish_run(folder: Path, proposals: Path | None) -> tuple[int, Results, ConformanceRun]:
    """Finish a run that found one violation, and return its exit code, its results and the run."""
    run = ConformanceRun(Options(engine="vllm", report_dir=folder, proposals=proposals), Role.ALONE)
    common = {"cell": "default", "test": "test_it", "title": "t"}
    run.log.emit("requirement", id="LORA-3", statement="s", parts={}, shows=[], upstream=[], fails_on=[], **common)
    run.log.emit("selftest", rows=[{"planted": "none", "caught": True, "said": "no alarm"}])
    run.reports.save_case(case(), "s")
    facts = {**UNREMARKABLE, "reason": "r", "examples": 3, "requests": 9, "seconds": 1.0, "evidence": {}}
    run.log.emit("verdict", requirement="LORA-3", verdict=Verdict.VIOLATED, **common, **facts)
    code = run.finish(interrupted=False)
    return code, read_results(folder / "results.json"), run


def test_proposals_change_no_verdict_and_no_exit_code(tmp_path: Path) -> None:
    """The run ends as it would without proposals, and no known issue is added."""
    plain_code, plain, _ = finish_run(tmp_path / "plain", None)
    path = tmp_path / "with proposals" / "known_issues.proposed.toml"
    code, results, _ = finish_run(tmp_path / "with proposals", path)
    assert code == plain_code == 1
    assert (results.headline, results.requirements, results.waivers) == (plain.headline, plain.requirements, [])
    assert len(tomllib.loads(path.read_text())["issue"]) == 1
    assert not list((tmp_path / "plain").glob("*.toml"))


def test_proposals_that_cannot_be_written_change_nothing_either(tmp_path: Path) -> None:
    """The run reports the problem and ends as it would without proposals."""
    file = tmp_path / "mine.toml"
    file.write_text("mine")
    code, results, run = finish_run(tmp_path / "out", file)
    assert (code, results.exit_code, file.read_text()) == (1, 1, "mine")
    assert '"problem":"' in run.log.path.read_text()
    assert "exists and will not be overwritten" in run.log.path.read_text()


def test_an_earlier_runs_proposals_are_not_taken_for_this_runs(tmp_path: Path) -> None:
    """They are moved with the other reports. A person's own file stays."""
    report = tmp_path / "report"
    finish_run(report, report / "vllm.proposed.toml")
    (report / "mine.toml").write_text("mine")
    finish_run(report, None)
    assert [path.name for path in report.glob("*.toml")] == ["mine.toml"]
    assert [path.name for path in (tmp_path / "report.1").glob("*.toml")] == ["vllm.proposed.toml"]


@pytest.mark.parametrize(
    ("entries", "problem", "line"),
    [
        (1, "", "1 known issue proposed; review them in out/x.toml\n"),
        (2, "", "2 known issues proposed; review them in out/x.toml\n"),
        (0, "no space", "cannot write proposed known issues: no space\n"),
    ],
)
def test_the_terminal_says_where_and_how_many(
    entries: int, problem: str, line: str, pytestconfig: pytest.Config
) -> None:
    """It is one line."""
    file = io.StringIO()
    terminal = Terminal(TerminalReporter(pytestconfig, file), None)
    terminal.on_event("proposed", {"path": "out/x.toml", "entries": entries, "problem": problem})
    assert file.getvalue() == line
