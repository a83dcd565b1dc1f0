"""A release runs once, whatever the result, and its verdicts are those of its own results."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support import report_samples
from support.page import Page

from coldproof.adapters.registry import ENGINES
from coldproof.harness.case.finding_records import FOLDER
from coldproof.harness.cli.main import main
from coldproof.harness.cli.releases import release_source
from coldproof.harness.engine_releases.release_runs import (
    ReleaseRuns,
    history_of,
    interpreters,
    package_folders,
)
from coldproof.harness.engine_releases.replays import Replay, replayed, summary
from coldproof.harness.options import UsageError
from coldproof.harness.schema.releases import ReleaseHistory
from coldproof.harness.schema.results import Results, write_results
from coldproof.harness.schema.verdict import Verdict


def interpreter(folder: Path, version: str, results: Results | None, *, does: str = "") -> Path:
    """Return a program in place of an interpreter, which counts its calls and copies results into the report folder."""
    folder.mkdir(exist_ok=True)
    file, python = folder / f"{version}.json", folder / f"python-{version}"
    if results is not None:
        write_results(results, file)
    copies = f'cp "{file}" "$dir/results.json"' if results is not None else "echo broken; exit 3"
    python.write_text(
        "#!/bin/sh\n"
        f'echo "$@" >> "{folder}/calls-{version}"\n'
        f"{does}\n"
        'while [ "$1" != "--report-dir" ]; do shift; done; dir="$2"\n'
        f"{copies}\n"
    )
    python.chmod(0o755)
    return python


def calls(folder: Path, version: str) -> list[str]:
    """Return the command lines of the runs of a release."""
    file = folder / f"calls-{version}"
    return file.read_text().splitlines() if file.exists() else []


def sample(verdict: Verdict = Verdict.CONFORMS, **changes: Any) -> Results:
    """Return the results of a run with one requirement."""
    one = report_samples.requirement("LORA-1", "answers as cold", report_samples.cell(verdict=verdict))
    code = 1 if verdict is Verdict.VIOLATED else 0
    base = report_samples.results()
    return msgspec.structs.replace(base, requirements=[one], cases=[], exit_code=code, complete=True, **changes)


def runs(
    tmp_path: Path, pythons: dict[str, Path], *, seconds: float = 60, arguments: tuple[str, ...] = ()
) -> ReleaseRuns:
    """Return the runs of an engine that cannot be installed, with these interpreters."""
    engine = msgspec.structs.replace(ENGINES["vllm-inproc"], releases=None)
    return ReleaseRuns(
        engine=engine, arguments=arguments, out=tmp_path / "out", seconds=seconds, pythons=pythons, say=lambda _: None
    )


def test_a_release_has_the_verdicts_of_its_run_and_runs_once(tmp_path: Path) -> None:
    """It has the user's arguments and a folder of its own."""
    python = interpreter(tmp_path / "bin", "1.0", sample(Verdict.VIOLATED))
    plan = runs(tmp_path, {"1.0": python}, arguments=("--budget", "5s"))
    first, second = plan.row("1.0"), plan.row("1.0")
    assert first == second
    assert first.verdicts["LORA-1"].verdict is Verdict.VIOLATED
    assert (first.report, first.problem) == ("runs/1.0", "")
    (call,) = calls(tmp_path / "bin", "1.0")
    assert "coldproof run --engine vllm-inproc --report-dir" in call
    assert call.endswith("--budget 5s")


@pytest.mark.parametrize(
    ("results", "does", "said"),
    [
        (None, "", "the run ended with exit code 3; its output is in 1.0.log"),
        (sample(problem="lost"), "", ""),
        (None, "exec sleep 30", "ended after 0 s"),
    ],
)
def test_a_run_without_results_gives_the_reason(tmp_path: Path, results: Results | None, does: str, said: str) -> None:
    """It is tried again the next time."""
    python = interpreter(tmp_path / "bin", "1.0", results, does=does)
    plan = runs(tmp_path, {"1.0": python}, seconds=0.5 if does else 60)
    assert plan.row("1.0").problem == said
    plan.row("1.0")
    assert len(calls(tmp_path / "bin", "1.0")) == (2 if said else 1)


def test_a_release_without_an_environment_has_no_verdicts(tmp_path: Path) -> None:
    """The page says why."""
    row = runs(tmp_path, {}).row("9.9")
    assert row.verdicts == {}
    assert row.problem.startswith("not installed: Coldproof does not install releases of this engine")


def test_a_history_has_the_requirements_of_all_its_releases(tmp_path: Path) -> None:
    """An older release may lack a requirement."""
    other = report_samples.requirement("SALT-1", "salts partition")
    newer = sample()
    newer = msgspec.structs.replace(newer, requirements=[other, *newer.requirements])
    folder = tmp_path / "bin"
    plan = runs(tmp_path, {"1.0": interpreter(folder, "1.0", sample()), "2.0": interpreter(folder, "2.0", newer)})
    rows = [plan.row("1.0"), plan.row("2.0")]
    history = history_of(plan, rows, command="coldproof history", version="0.1", complete=True)
    assert list(history.requirements) == ["LORA-1", "SALT-1"]
    assert "SALT-1" not in history.releases[0].verdicts


def test_a_release_names_the_cells_with_an_error(tmp_path: Path) -> None:
    """Otherwise a violation in another cell would hide them."""
    cells = [
        report_samples.cell(name, Verdict.ERROR if name == "tight" else Verdict.VIOLATED) for name in ("tight", "a")
    ]
    one = report_samples.requirement("LORA-1", "answers as cold", *cells)
    results = msgspec.structs.replace(sample(Verdict.VIOLATED), requirements=[one])
    row = runs(tmp_path, {"1.0": interpreter(tmp_path / "bin", "1.0", results)}).row("1.0")
    assert (row.verdicts["LORA-1"].verdict, row.errors) == (Verdict.VIOLATED, ["tight"])
    assert release_source(row, results).said == ("Cells with an error: tight",)


def test_a_case_has_the_cause_that_is_known_of_its_release(tmp_path: Path) -> None:
    """Both files of the engine are used, including expired entries. An entry for other releases gives no cause."""
    entry = (
        '[[issue]]\nrequirement = "LORA-1"\nsignature = "LORA-1*"\nversions = "{versions}"\nlink = "{link}"\n'
        'reason = "{reason}"\nexpires = 2020-01-01\n'
    )
    files = tmp_path / "known.toml", tmp_path / "past.toml"
    files[0].write_text(entry.format(versions=">=2.0", link="none", reason="same name"))
    files[1].write_text(entry.format(versions="<1.5", link="https://example.org/9", reason="no tag"))
    case = report_samples.case()
    results = sample(Verdict.VIOLATED)
    one = msgspec.structs.replace(results.requirements[0], cases=[case.id])
    results = msgspec.structs.replace(results, requirements=[one], cases=[case])
    folder, versions = tmp_path / "bin", ("1.0", "1.7", "2.0")
    plan = runs(tmp_path, {version: interpreter(folder, version, results) for version in versions})
    engine = msgspec.structs.replace(plan.engine, known_issues=files[0], past_issues=files[1])
    plan = msgspec.structs.replace(plan, engine=engine)
    found = [plan.row(version).verdicts["LORA-1"].cases[0] for version in versions]
    assert [(one.cause, one.link) for one in found] == [
        ("no tag", "https://example.org/9"),
        ("", ""),
        ("same name", "none"),
    ]


def test_interpreters_are_given_by_release(tmp_path: Path) -> None:
    """A path that is no file is refused."""
    python = interpreter(tmp_path / "bin", "1.0", None)
    assert interpreters([f"1.0={os.path.relpath(python)}"]) == {"1.0": Path(os.path.abspath(python))}
    for wrong in ("1.0", f"1.0={tmp_path}"):
        with pytest.raises(UsageError, match="give RELEASE=PATH"):
            interpreters([wrong])


def test_folders_of_packages_are_given_by_releases(tmp_path: Path) -> None:
    """The releases may be one, a list or a range. A path that is no folder is refused, and so is a wrong version."""
    words = [f"{releases}={tmp_path}" for releases in ("0.20..0.26", "0.28.0", "0.29,0.30")]
    assert package_folders(words) == tuple((word.partition("=")[0], tmp_path) for word in words)
    for wrong in ("0.28", f"0.28={tmp_path / 'none'}", f"old={tmp_path}"):
        with pytest.raises(UsageError):
            package_folders([wrong])


@pytest.mark.parametrize(
    ("results", "fails"),
    [
        (sample(Verdict.VIOLATED), True),
        (sample(Verdict.KNOWN_ISSUE), True),
        (sample(), False),
        (sample(Verdict.NOT_EXERCISED), None),
        (None, None),
    ],
)
def test_a_replay_fails_passes_or_is_undecided(tmp_path: Path, results: Results | None, fails: bool | None) -> None:
    """The verdict of the replay decides this, and is stored."""
    plan = runs(tmp_path, {"1.0": interpreter(tmp_path / "bin", "1.0", results)})
    case = FOLDER / "vllm" / "adapter-key-lacks-the-contents" / "case.json"
    assert replayed(plan, case, "1.0").fails is fails
    (call,) = calls(tmp_path / "bin", "1.0")
    assert f"coldproof replay {case}" in call
    assert " --layers exact " in call, "that of the case"


@pytest.mark.parametrize(
    ("fails", "said"),
    [
        ({"1": False, "2": None, "3": False}, "the case fails on none of 2 tested releases"),
        ({"1": None, "2": None}, "the case could not be tested on any of these releases"),
        (
            {"1": False, "2": True, "3": True, "4": False},
            "first failing release: 2 (1 does not fail); last failing release: 3 (4 does not fail)",
        ),
        ({"1": True, "2": None, "3": True}, "first failing release: 1; last failing release: 3"),
        (
            {"1": True, "2": False, "3": True},
            "first failing release: 1; last failing release: 3; releases between them do not fail",
        ),
    ],
)
def test_the_first_and_the_last_failing_release_are_named(fails: dict[str, bool | None], said: str) -> None:
    """A release that could not be tested is no limit of the range."""
    assert summary([Replay(version, failed, "") for version, failed in fails.items()]) == said


def test_the_command_writes_history_json_and_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a column for each release, and exit code 3 if the run of one did not come to its end."""
    bad, good = (interpreter(tmp_path / "bin", *one) for one in (("1.0", sample(Verdict.VIOLATED)), ("2.0", sample())))
    broken = interpreter(tmp_path / "bin", "3.0", None)
    pythons = [f"--python={version}={path}" for version, path in (("1.0", bad), ("2.0", good), ("3.0", broken))]
    out = tmp_path / "out"
    assert main(["history", "--releases", "1.0,2.0,3.0", *pythons, "--out", str(out)]) == 3
    history = msgspec.json.decode((out / "history.json").read_bytes(), type=ReleaseHistory)
    assert [(row.version, list(row.verdicts)) for row in history.releases] == [
        ("1.0", ["LORA-1"]),
        ("2.0", ["LORA-1"]),
        ("3.0", []),
    ]
    page = Page((out / "index.html").read_text(encoding="utf-8"))
    said = "vLLM: 2 of 3 releases tested — 1 fixed"
    assert said in page.text
    assert said in capsys.readouterr().out
    assert "3.0: the run ended with exit code 3; its output is in 3.0.log" in page.text
    assert {"runs/1.0/index.html", "runs/2.0/index.html", "history.json"} <= set(page.attributes("href"))
