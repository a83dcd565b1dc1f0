"""`coldproof prove` goes on with the counterexamples of a report that were put aside."""

from __future__ import annotations

import shlex
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.paths import COUNTED, ended

from coldproof.adapters.common.redact import KEY_VARIABLE
from coldproof.harness.case.replay_command import GIVEN_AGAIN, own_options
from coldproof.harness.cli.io import Refusal
from coldproof.harness.cli.main import main
from coldproof.harness.cli.prove import check_key, new_verdicts, proof_words
from coldproof.harness.option_table import name_of
from coldproof.harness.options import Options
from coldproof.harness.schema.case import UNPROVED, Unfinished, read_case
from coldproof.harness.schema.exit_codes import EXIT_FAILED, EXIT_USAGE
from coldproof.harness.schema.results import Results, read_results
from coldproof.harness.schema.verdict import Verdict
from coldproof.reports.exports.terminal import closing_lines

ENGINE = ("-p", "support.flawed_engine", "-p", "no:cacheprovider")
FLAW = {"COLDPROOF_FLAW": "SALT_DROPPED", "COLDPROOF_FINDINGS": "no-folder"}
SUITES = ("suites", "--engine", "scripted", "--cells", "scripted", "--requirements", "SALT-1,CHAT-1")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the report of a run that found a counterexample and had no time to prove it."""
    folder = tmp_path_factory.mktemp("runs") / "report"
    words = ["-m", "pytest", *ENGINE, "-p", "support.no_time_for_proofs", *SUITES, "--findings", "off", *COUNTED]
    done = ended([sys.executable, *words, "--report-dir", str(folder)], **FLAW)
    assert done.returncode == EXIT_FAILED, done.stdout + done.stderr
    return folder


def requirement(results: Results, name: str) -> tuple[Verdict, str]:
    """Return the verdict of a requirement and its reason."""
    return next((one.verdict, one.reason) for one in results.requirements if one.id == name)


def test_a_confirmed_case_stays_without_time_for_its_cause(report: Path, tmp_path: Path) -> None:
    """It is a violation already. To replay it once more, and not to confirm it, says nothing against it."""
    confirmed = tmp_path / "confirmed"
    shutil.copytree(report, confirmed)
    for path in (confirmed / "results.json", confirmed / "events.ndjson", *confirmed.glob("cases/*.json")):
        said = path.read_text().replace('"unfinished":"proof"', '"unfinished":"cause"')
        path.write_text(said.replace('"verdict":"INCONCLUSIVE"', '"verdict":"VIOLATED"'))
    words = ["-m", "coldproof", "prove", str(confirmed), *ENGINE, "-p", "support.no_time_for_proofs"]
    done = ended([sys.executable, *words], **FLAW)
    assert done.returncode == EXIT_FAILED, done.stdout + done.stderr
    after = read_results(confirmed / "results.json")
    assert [case.unfinished for case in after.cases] == [Unfinished.CAUSE]
    assert requirement(after, "SALT-1")[0] is Verdict.VIOLATED


def test_what_could_not_be_written_again_is_refused_before_the_proofs(
    report: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They take minutes, and would be lost."""
    for lost in ("events.ndjson", "cases"):
        copy = tmp_path / lost
        shutil.copytree(report, copy, ignore=shutil.ignore_patterns(lost))
        assert main(["prove", str(copy)]) == EXIT_USAGE
        assert "proving" not in capsys.readouterr().out
    assert main(["prove", str(report / "results.json")]) == EXIT_USAGE


def test_what_was_put_aside_is_proved_later(report: Path) -> None:
    """Before, it is no violation. Afterwards the report has what a run with time would have, and all else stays."""
    before = read_results(report / "results.json")
    verdict, reason = requirement(before, "SALT-1")
    assert verdict is Verdict.INCONCLUSIVE
    assert reason.startswith(UNPROVED)
    (open_case,) = before.cases
    assert open_case.unfinished is Unfinished.PROOF
    (report / "mine.txt").write_text("not ours")
    with (report / "events.ndjson").open("a") as file:
        file.write('{"event":"exam')  # as of a run that was killed
    words = ["-m", "coldproof", "prove", str(report), *ENGINE, "-p", "support.counted_budget"]
    done = ended([sys.executable, *words], **FLAW)
    assert done.returncode == EXIT_FAILED, done.stdout + done.stderr
    after = read_results(report / "results.json")
    (case,) = after.cases
    assert case.unfinished is None
    assert case.reproduction.fresh_failed == case.reproduction.fresh_tries
    assert case.diagnosis is not None
    assert len(str(case.workload)) <= len(str(open_case.workload))
    assert f"{report}/cases/{case.id}.json" in case.replay
    assert requirement(after, "SALT-1")[0] is Verdict.VIOLATED
    assert requirement(after, "CHAT-1") == requirement(before, "CHAT-1")
    assert (after.complete, after.totals["examples"]) == (before.complete, before.totals["examples"])
    assert after.duration_s == before.duration_s
    assert {"mine.txt", f"{case.id}.py"} <= {path.name for path in report.rglob("*")}
    assert main(["prove", str(report)]) == EXIT_FAILED


def test_a_counterexample_of_a_killed_run_is_proved_later(tmp_path: Path) -> None:
    """It is in the events as it was found, and `render` and `prove` make the rest."""
    report = tmp_path / "report"
    words = ["-m", "pytest", *ENGINE, "-p", "support.interrupted_before_proofs", *SUITES, "--findings", "off", *COUNTED]
    done = ended([sys.executable, *words, "--report-dir", str(report)], **FLAW, COLDPROOF_KILLED="1")
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr
    assert main(["render", str(report)]) == 0
    before = read_results(report / "results.json")
    assert [(case.requirement, case.unfinished) for case in before.cases] == [("SALT-1", Unfinished.PROOF)]
    assert read_case(report / "cases" / f"{before.cases[0].id}.json") == before.cases[0]
    assert requirement(before, "SALT-1")[0] is Verdict.INCONCLUSIVE
    words = ["-m", "coldproof", "prove", str(report), *ENGINE, "-p", "support.counted_budget"]
    done = ended([sys.executable, *words], **FLAW)
    assert done.returncode == EXIT_FAILED, done.stdout + done.stderr
    after = read_results(report / "results.json")
    assert [(case.requirement, case.unfinished) for case in after.cases] == [("SALT-1", None)]
    assert requirement(after, "SALT-1")[0] is Verdict.VIOLATED
    assert not after.complete


def test_a_report_without_open_cases_stays(report: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its exit code is that of the report."""
    results = read_results(report / "results.json")
    done = [msgspec.structs.replace(case, unfinished=None) for case in results.cases]
    copy = report.with_name("copy.json")
    copy.write_bytes(msgspec.json.encode(msgspec.structs.replace(results, cases=done)))
    assert main(["prove", str(copy)]) == EXIT_FAILED
    assert "nothing is left" in capsys.readouterr().out


def test_the_proofs_have_the_options_of_the_run_about_its_engines(report: Path, tmp_path: Path) -> None:
    """What it drew and wrote is not among them, and no option of pytest's: a report may come from anybody."""
    results = read_results(report / "results.json")
    command = "pytest suites -p evil --rootdir=/ --engine scripted --budget 5s --report-dir=out --profile ci -k x"
    said = msgspec.structs.replace(results, command=command)
    words = proof_words(said, results.cases, [], report=report, folder=tmp_path)
    pairs = set(zip(words[3::2], words[4::2], strict=True))
    assert words[:3] == ["-q", "-p", "no:cacheprovider"]
    assert pairs == {
        ("--engine", "scripted"),
        ("--profile", "ci"),
        ("--prove", str(report)),
        ("--findings", "off"),
        ("--report-dir", str(tmp_path)),
    }


OWN = ["--engine-args=--trust-remote-code --seed 1", "--model", "/else/where", "--shared-dir", "/srv"]


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        pytest.param([], OWN, id="none-given"),
        pytest.param(["--budget", "5m", *OWN[1:3]], [OWN[0], *OWN[3:]], id="one-given"),
        pytest.param(OWN, [], id="all-given"),
        pytest.param(["--model=/mine", "--shared-dir=/mine", "--engine-args", "--seed 2"], [], id="others-given"),
    ],
)
def test_what_a_report_would_load_here_is_given_again(
    report: Path, tmp_path: Path, given: list[str], missing: list[str]
) -> None:
    """A report may come from anybody, and its options name programs, models and folders. The command that gives them
    again can be copied.
    """
    results = read_results(report / "results.json")
    said = msgspec.structs.replace(results, command=shlex.join(["pytest", "suites", *OWN]))
    if missing:
        with pytest.raises(Refusal) as refusal:
            proof_words(said, results.cases, given, report=report, folder=tmp_path)
        command = str(refusal.value).partition("give them again: ")[2]
        assert shlex.split(command) == ["coldproof", "prove", str(report), *missing, *given]
        given = shlex.split(command)[3:]
    assert not {"--model", "/else/where"} & {*proof_words(said, results.cases, given, report=report, folder=tmp_path)}


def test_the_command_that_a_run_prints_gives_all_again(report: Path, tmp_path: Path) -> None:
    """So it can be copied from the terminal as it is."""
    options = Options(
        engine="vllm",
        report_dir=report,
        model="/models/mine",
        adapters=(Path("/a"), Path("/b")),
        weights=(Path("/w"),),
        engine_args=("--seed", "2"),
        shared_dir=Path("/srv"),
        cache_dir=Path("/cache"),
    )
    words = own_options(options)
    assert {name_of(word.partition("=")[0]) for word in words if word.startswith("--")} == set(GIVEN_AGAIN)
    results = read_results(report / "results.json")
    left = [msgspec.structs.replace(case, unfinished=Unfinished.PROOF) for case in results.cases]
    said = msgspec.structs.replace(results, cases=left, command=shlex.join(["pytest", "suites", *words]))
    printed = next(line for line in closing_lines(said, report / "index.html", own=words) if "coldproof prove" in line)
    assert shlex.split(printed.partition(": ")[2])[3:] == words
    assert not {"--model", "/models/mine"} & {*proof_words(said, said.cases, words, report=report, folder=tmp_path)}


def test_a_key_is_sent_to_no_server_that_only_the_report_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report may come from anybody."""
    words = ["-q", "--engine-url", "https://else.where", "--profile", "ci"]
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    check_key(words, [])
    monkeypatch.setenv(KEY_VARIABLE, "secret")
    with pytest.raises(Refusal, match=r"https://else\.where"):
        check_key(words, ["--budget", "5m"])
    check_key(words, ["--engine-url", "https://my.own"])
    check_key(["-q", "--profile", "ci"], [])


def verdict(name: str, case: str | None) -> dict[str, Any]:
    """Return the event of a verdict."""
    where = {"requirement": "SALT-1", "cell": "default", "test": "test", "layer": "exact"}
    return {"event": "verdict", "verdict": name, "reason": name, "case": case, "further": [], "known": [], **where}


def test_a_verdict_that_rests_on_another_case_stays_if_it_is_worse() -> None:
    """One that rests on what was put aside is replaced."""
    (violated,) = new_verdicts([verdict("INCONCLUSIVE", "open")], [verdict("VIOLATED", "new")], {"open"})
    assert (violated["verdict"], violated["case"], violated["further"]) == ("VIOLATED", "new", [])
    (kept,) = new_verdicts([verdict("VIOLATED", "other")], [verdict("KNOWN ISSUE", "new")], {"open"})
    assert (kept["verdict"], kept["case"], kept["further"][0]["case"]) == ("VIOLATED", "other", "new")
    (worse,) = new_verdicts([verdict("KNOWN ISSUE", "other")], [verdict("VIOLATED", "new")], {"open"})
    assert (worse["verdict"], worse["case"], worse["further"][0]["case"]) == ("VIOLATED", "new", "other")
    (error,) = new_verdicts([verdict("ERROR", None)], [verdict("KNOWN ISSUE", "new")], {"open"})
    assert (error["verdict"], error["case"], error["further"][0]["case"]) == ("ERROR", None, "new")
    assert not new_verdicts([verdict("INCONCLUSIVE", "open")], [verdict("INCONCLUSIVE", None)], {"open"})
