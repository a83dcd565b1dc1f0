"""The list of real bugs is complete, its page is what the script writes, and an outcome follows from verdicts alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from support import power_samples
from support.case_samples import stale
from support.declared_requirements import declared_requirements
from support.modules import script
from support.report_samples import results

from coldproof.adapters.registry import ENGINES
from coldproof.adapters.vllm.faults.catalogue import FAULTS
from coldproof.harness.case.finding_records import read_records
from coldproof.harness.schema.results import write_results
from coldproof.harness.schema.verdict import FailureClass, Verdict

SCRIPT = script("benchmarks/real_bugs/real_bugs.py")
BUGS, RUNS, OUTCOMES, PAGE, PLANT = (
    script(f"benchmarks/real_bugs/{name}.py") for name in ("bug_list", "bug_runs", "outcomes", "bug_page", "plant")
)
LIST = BUGS.read_bugs()


def bug(**changes: Any) -> Any:
    """Return a bug that LORA-1 should detect on 1.0."""
    return msgspec.structs.replace(
        BUGS.Bug(
            id="one",
            engine="vllm",
            title="a title",
            reports=["https://github.com/owner/vllm/issues/1"],
            mechanism="Because.",
            before="1.0",
            after="1.1",
            has="<1.1",
            checked="in the source",
            requirements=["LORA-1"],
            failures=[FailureClass.STALE_STATE],
        ),
        **changes,
    )


def run(release: str, *signatures: str, requirement: str = "LORA-1") -> Any:
    """Return a run with cases of these signatures."""
    cases = [RUNS.Counterexample(signature, "what was seen") for signature in signatures]
    verdict = Verdict.VIOLATED if cases else Verdict.CONFORMS
    tested = RUNS.Tested(verdict=verdict, examples=3, requests=9, cases=cases)
    return RUNS.Run(engine="vllm", release=release, command="run", seconds=1.0, verdicts={requirement: tested})


@pytest.mark.parametrize(
    ("runs", "changes", "outcome"),
    [
        ([run("1.0", "stale state; reload"), run("1.1")], {}, "DETECTED"),
        ([run("1.0", "stale state; reload"), run("1.1", "stale state; reload")], {}, "BOTH"),
        ([run("1.0", "stale state; reload"), run("1.1", "hang; reload")], {}, "DETECTED"),
        ([run("1.0", "hang; reload"), run("1.1")], {}, "MISSED"),
        ([run("1.0"), run("1.1")], {}, "MISSED"),
        ([run("1.0", "stale state", requirement="LORA-2"), run("1.1")], {}, "WAITING"),
        ([run("1.0", "stale state; reload")], {}, "WAITING"),
        ([run("1.1")], {}, "WAITING"),
        ([], {"requirements": []}, "MISSED"),
        ([run("1.0", "stale state; reload"), run("1.1")], {"cannot": "needs a GPU"}, "CANNOT"),
        ([run("1.0"), run("1.0", "stale state; reload"), run("1.1")], {}, "DETECTED"),
        ([run("1.0"), run("1.1")], {"requirements": ["LORA-1", "LORA-2"]}, "WAITING"),
        ([run("1.0", "stale state"), run("1.1", requirement="LORA-2")], {}, "WAITING"),
    ],
)
def test_an_outcome_follows_from_the_runs_before_and_after(
    runs: list[Any], changes: dict[str, Any], outcome: str
) -> None:
    """Another failure, another requirement and a release that was not run do not count as detected."""
    assert OUTCOMES.result(runs, bug(**changes)).outcome is OUTCOMES.Outcome[outcome]


def test_a_case_that_passes_after_the_fix_is_of_the_bug() -> None:
    """The requirement may be violated there by another cause. That no case passes is no detection."""
    after = run("1.1", "stale state; reload")

    def before(*releases: str) -> Any:
        found = run("1.0", "stale state; reload", "stale state; other")
        case = msgspec.structs.replace(found.verdicts["LORA-1"].cases[1], passes_on=list(releases))
        cases = [found.verdicts["LORA-1"].cases[0], case]
        return msgspec.structs.replace(
            found, verdicts={"LORA-1": msgspec.structs.replace(found.verdicts["LORA-1"], cases=cases)}
        )

    detected = OUTCOMES.result([before("1.1"), after], bug())
    assert detected.outcome is OUTCOMES.Outcome.DETECTED
    assert detected.found["LORA-1"].signature == "stale state; other"
    assert OUTCOMES.result([before("1.2"), after], bug()).outcome is OUTCOMES.Outcome.BOTH
    assert OUTCOMES.result([before("1.1")], bug()).outcome is OUTCOMES.Outcome.DETECTED  # no run is needed there


def test_a_counterexample_of_another_cause_does_not_count() -> None:
    """It may have the failure class that is expected, and pass after the fix by another fix."""
    runs = [run("1.0", "stale state; reload"), run("1.1")]
    assert OUTCOMES.result(runs, bug(), ("what was",)).outcome is OUTCOMES.Outcome.MISSED
    assert OUTCOMES.result(runs, bug(), ("something else",)).outcome is OUTCOMES.Outcome.DETECTED


def test_what_a_replay_beside_a_history_found_is_recorded(tmp_path: Path) -> None:
    """Only a replay that came to its end and conforms counts."""
    whole = results(stale(), exit_code=1)
    conforming = [msgspec.structs.replace(one, verdict=Verdict.CONFORMS, cases=[]) for one in whole.requirements[:1]]
    for release, found in (
        ("1.1", msgspec.structs.replace(whole, requirements=conforming, exit_code=0)),
        ("1.2", whole),
        ("1.3", msgspec.structs.replace(whole, requirements=conforming, complete=False)),
        ("1.4", msgspec.structs.replace(whole, requirements=[], exit_code=0)),
    ):
        folder = tmp_path / "replays" / "LORA-1-abc" / release
        folder.mkdir(parents=True)
        write_results(found, folder / "results.json")
    (tmp_path / "replays" / "LORA-1-abc" / "1.5.log").touch()
    assert RUNS.passes_on(tmp_path, "LORA-1-abc") == ["1.1"]
    assert RUNS.passes_on(tmp_path, "LORA-1-other") == []


def test_a_requirement_that_ended_in_an_error_was_not_tested() -> None:
    """An engine that did not start says nothing about a bug, neither before the fix nor after it."""
    failed = RUNS.Tested(verdict=Verdict.ERROR, examples=0, requests=0)
    before, after = (msgspec.structs.replace(run(one), verdicts={"LORA-1": failed}) for one in ("1.0", "1.1"))
    assert OUTCOMES.result([before, run("1.1")], bug()).outcome is OUTCOMES.Outcome.WAITING
    assert OUTCOMES.result([run("1.0", "stale state"), after], bug()).outcome is OUTCOMES.Outcome.WAITING
    other = run("1.0", "hang")
    in_a_cell = msgspec.structs.replace(other.verdicts["LORA-1"], errors=["tight"])
    partly = msgspec.structs.replace(other, verdicts={"LORA-1": in_a_cell})
    assert OUTCOMES.result([partly, run("1.1")], bug()).outcome is OUTCOMES.Outcome.WAITING


def test_the_list_is_long_enough_and_consistent() -> None:
    """It has at least thirty bugs that can occur on a CPU, for four engines, each with a release before and after
    its fix.
    """
    assert len({one.id for one in LIST}) == len(LIST)
    assert sum(not one.cannot for one in LIST) >= 30
    assert {one.engine for one in LIST} == set(PAGE.ENGINES)
    for one in LIST:
        assert one.failures, one.id
        assert one.before or one.planted, one.id
        assert bool(one.after) or bool(one.finding) or not one.before, one.id
        assert not (one.before and one.after) or Version(one.before) < Version(one.after), one.id
        assert not one.before or SpecifierSet(one.has).contains(one.before), one.id
        assert not one.after or not SpecifierSet(one.has).contains(one.after), one.id
        assert PAGE.links(one).count("](") == len(one.reports), one.id


def test_the_list_names_requirements_that_a_cell_of_the_engine_has() -> None:
    """Otherwise no run could ever decide a bug."""
    for one in LIST:
        name = "vllm-inproc" if one.engine == "vllm" else one.engine
        crossings = ENGINES[name].crossings
        cells = [*ENGINES[name].cells, *(crossings.cells("smoke") if crossings is not None else ())]
        for requirement in one.requirements:
            if not one.cannot:
                suits = declared_requirements()[requirement].suits
                assert any(cell.suits(suits) for cell in cells), (one.id, requirement)


def test_what_is_planted_is_a_fault_and_what_is_open_a_finding() -> None:
    """A name that nothing has could never be detected."""
    assert {one.planted for one in LIST if one.planted} <= set(FAULTS)
    assert {one.finding for one in LIST if one.finding} <= set(read_records())


def planted(profile: str, requirement: str = "", **changes: Any) -> Any:
    """Return a run with the planted bug `fault`."""
    return RUNS.PlantedRun(
        **{"fault": "fault", "profile": profile, "acted": True, "requests": 5, "requirement": requirement} | changes
    )


@pytest.mark.parametrize(
    ("runs", "outcome"),
    [
        ([planted("smoke", "LORA-1")], "DETECTED"),
        ([planted("smoke"), planted("ci", "LORA-2")], "DETECTED"),
        ([planted("smoke"), planted("ci"), planted("named cell", "LORA-1")], "NAMED"),
        ([planted("smoke"), planted("ci", acted=False)], "MISSED"),
        ([planted("ci", "LORA-2", acted=False)], "MISSED"),
        ([planted("ci", problem="the engine did not start")], "WAITING"),
        ([planted("ci", "LORA-1", fault="another")], "WAITING"),
        ([], "WAITING"),
    ],
)
def test_a_planted_bug_is_detected_by_a_profile_or_where_its_cells_are_named(runs: list[Any], outcome: str) -> None:
    """What was found with names says that the suites can, not that they do."""
    found = OUTCOMES.result([], bug(before="", after="", planted="fault"), (), runs)
    assert found.outcome is OUTCOMES.Outcome[outcome]


def test_a_bug_is_alone_in_its_engine(tmp_path: Path) -> None:
    """All known causes are repaired, but the bug itself where it is open; MIXED-2 runs beside what the list names."""
    planted = next(one for one in LIST if one.id == "vllm-34616")
    still_open = next(one for one in LIST if one.id == "vllm-54076")
    runs = (
        (PLANT.plan(planted, 1), "known", planted.requirements),
        (PLANT.open_plan(still_open, 1), f"known,-{still_open.finding}", still_open.requirements),
    )
    for plan, repairs, requirements in runs:
        words = plan.words(tmp_path)
        assert words[words.index("--repairs") + 1] == repairs
        assert set(words[words.index("--requirements") + 1].split(",")) == {*requirements, "MIXED-2"}


@pytest.mark.parametrize(("code", "counts"), [(0, True), (1, False)])
def test_what_fails_without_the_bug_is_not_of_it(tmp_path: Path, code: int, counts: bool) -> None:
    """The case of a detection is replayed on the engine without the bug, with the same repairs."""
    bug_ = next(one for one in LIST if one.id == "vllm-34616")
    cases = tmp_path / "report" / "cases"
    cases.mkdir(parents=True)
    for name in ("TIER-1-abc.json", "TIER-1-abc.trace.json"):
        (cases / name).write_text("{}")
    asked: list[list[str]] = []

    def replay(words: list[str]) -> int:
        asked.append(words)
        return code

    found = power_samples.suite_run(power_samples.seen())
    kept = PLANT.of_the_bug(PLANT.plan(bug_, 1), found, tmp_path, replay)
    assert bool(kept.detections) is counts
    assert bool(kept.problem) is not counts
    (words,) = asked
    assert words[4] == str(cases / "TIER-1-abc.json")
    assert "--fault" not in words
    assert words[words.index("--repairs") + 1] == "known"


def test_what_is_planted_again_decides_where_the_release_does_not() -> None:
    """A bug that was seen on its release needs no more."""
    again = [planted("smoke", "LORA-1")]
    both = [run("1.0", "stale state; reload"), run("1.1", "stale state; reload")]
    assert OUTCOMES.result(both, bug(planted="fault"), (), again).outcome is OUTCOMES.Outcome.DETECTED
    assert OUTCOMES.result(both, bug(planted="fault"), (), [planted("ci")]).outcome is OUTCOMES.Outcome.MISSED
    assert OUTCOMES.result(both, bug(planted="fault")).outcome is OUTCOMES.Outcome.BOTH
    seen = [run("1.0", "stale state; reload"), run("1.1")]
    assert OUTCOMES.result(seen, bug(planted="fault"), (), again).again is None


def test_an_open_bug_is_detected_by_a_case_that_its_repair_ends() -> None:
    """Another case of its requirement says nothing."""
    found = run("1.0", "hang", "stale state")
    cases = found.verdicts["LORA-1"].cases
    cases[1] = msgspec.structs.replace(cases[1], causes=["vllm/one"])
    assert OUTCOMES.result([found], bug(finding="vllm/one")).found == {"LORA-1": cases[1]}
    assert OUTCOMES.result([found], bug(finding="vllm/two")).outcome is OUTCOMES.Outcome.MISSED
    assert OUTCOMES.result([], bug(finding="vllm/one")).outcome is OUTCOMES.Outcome.WAITING


def test_the_runs_of_a_measurement_are_recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A later one takes the place of an earlier one with its fault and profile."""
    monkeypatch.setattr(RUNS, "PLANTED", tmp_path / "planted.json")
    fault = power_samples.row(aimed=power_samples.suite_run(), wide=power_samples.suite_run(power_samples.seen()))
    measured = msgspec.structs.replace(power_samples.results(fault), budgets={"ci": 420.0})
    RUNS.record_planted(RUNS.planted_runs(measured))
    RUNS.record_planted(RUNS.planted_runs(measured))
    runs = RUNS.read_planted()
    assert [(run.profile, run.requirement) for run in runs] == [("ci", "SALT-1"), ("named cell", "")]


def test_notes_are_about_bugs_of_the_list() -> None:
    """A note of a bug that was renamed would be lost."""
    assert set(BUGS.read_notes()) <= {one.id for one in LIST}


def test_the_results_of_one_run_can_be_recorded(tmp_path: Path) -> None:
    """A run that was ended by a time limit has no history."""
    ended = results(stale(), complete=False)
    write_results(ended, tmp_path / "results.json")
    ((command, row, whole),) = RUNS.rows(tmp_path / "results.json")
    assert ended.engine is not None
    assert (row.version, whole, command) == (ended.engine.version, False, ended.command)
    assert any(tested.cases for tested in row.verdicts.values())


def test_a_command_keeps_the_names_of_its_files_but_not_their_folders() -> None:
    """The folders are those of one machine."""
    command = "pytest /home/me/suites --rootdir=/home/me --python 0.24.0=/opt/envs/bin/python --out out/vllm -k a/b"
    assert RUNS.without_folders(command) == "pytest suites --python 0.24.0=python --out out/vllm -k a/b"


def test_the_page_is_what_the_script_writes() -> None:
    """No outcome is therefore written by hand."""
    assert SCRIPT.current_page() == SCRIPT.PAGE.read_text()
