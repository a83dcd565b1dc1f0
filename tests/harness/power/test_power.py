"""The kill matrix has the right runs for a fault, reads their results, and has a page. No engine is needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support import report_samples
from support.power_samples import FAULT, results, row, seen, suite_run

from coldproof.adapters.registry import CELLS
from coldproof.adapters.spec.fault import Patch, Plant, collector
from coldproof.adapters.vllm.faults.catalogue import FAULTS
from coldproof.harness.cli import main as command_line
from coldproof.harness.cli import power
from coldproof.harness.options import PROFILES
from coldproof.harness.power import measure
from coldproof.harness.power import suite_run as suites
from coldproof.harness.power.measure import Measurement, fault_outcome, select_faults
from coldproof.harness.power.suite_run import (
    RunPlan,
    aimed_plan,
    clean_plan,
    fault_cells,
    profile_plan,
    read,
    requests_until_failure,
    violating,
    wide_plan,
)
from coldproof.harness.schema.attribution import Attribution, Basis
from coldproof.harness.schema.power import FaultRow, Outcome, PowerResults, SuiteRun
from coldproof.harness.schema.results import encode
from coldproof.harness.schema.verdict import Verdict
from coldproof.reports.assemble.assemble import injected_fault, read_events
from coldproof.reports.kill_matrix.kill_matrix import columns, figures, headline, render_power

CAUGHT = row("caught", aimed=suite_run(seen(requests=7), seen("LORA-4", 3)), wide=suite_run(seen("LORA-4", 30)))
ELSEWHERE = row("elsewhere", aimed=suite_run(), wide=suite_run(seen("LORA-4", 90, steps=9)), found="wrong")
SURVIVED = row("survivor", aimed=suite_run(), wide=suite_run(acted=False))
UNREACHED = row("unreached", aimed=suite_run(acted=False), wide=suite_run(acted=False))
BROKEN = row("broken", aimed=suite_run(problem="exit code 3"), wide=suite_run())
EQUIVALENT = row("equivalent", aimed=suite_run(), wide=suite_run(), equivalent="Nobody sees the order.")


def test_each_fault_can_be_measured_in_a_cell() -> None:
    """One of its workers must be able to. Cells in which only a server has several ranks are not measured in
    process.
    """
    served_only = {
        name
        for name, fault in FAULTS.items()
        if fault.cells and not any(CELLS[cell].fits("vllm-inproc", "model") for cell in fault.cells)
    }
    nowhere = {name for name, fault in FAULTS.items() if not any(fault_cells(fault, one) for one in fault.workers)}
    assert nowhere <= served_only


def described(text: str = "Hashes forget.") -> Plant:
    """Return the function of a fault with this docstring."""

    def plant(_patch: Patch) -> None: ...

    plant.__doc__ = text
    return plant


@pytest.mark.parametrize(
    ("about", "stands_for", "text"),
    [((), "vllm#1", "A sentence."), (("SALT-1",), "", "A sentence."), (("SALT-1",), "vllm#1", "No sentence")],
)
def test_a_fault_that_does_not_say_what_it_is_is_refused(about: tuple[str, ...], stands_for: str, text: str) -> None:
    """It is refused at its definition."""
    _, fault = collector("identity")
    with pytest.raises(ValueError, match="fault plant: "):
        fault(*about, stands_for=stands_for)(described(text))


def test_two_faults_of_one_name_are_refused() -> None:
    """The second would replace the first."""
    _, fault = collector("identity")
    fault("SALT-1", stands_for="vllm#1")(described())
    with pytest.raises(ValueError, match="two faults are called plant"):
        fault("SALT-1", stands_for="vllm#1")(described())


@pytest.mark.parametrize("profile", ["smoke", "ci"])
def test_the_run_of_a_profile_is_what_a_user_runs_up_to_the_first_violation(profile: str) -> None:
    """It has all requirements, cells and the time of the profile. The run of the unmodified engine goes to its end."""
    words = profile_plan(profile, FAULT, worker="fingerprint", seed=3).words(Path("out"))
    assert "--requirements" not in words
    assert "--cells" not in words
    assert words[words.index("--profile") + 1] == profile
    assert words[words.index("--budget") + 1] == f"{PROFILES[profile].fingerprint_seconds:g}s"
    assert words[words.index("--maxfail") + 1] == "1"
    assert "--maxfail" not in profile_plan(profile, None, worker="fingerprint", seed=3).words(Path("out"))


def test_the_aimed_run_is_about_the_fault_and_the_wide_one_about_everything() -> None:
    """Both runs have the fault, in cells where it is reached."""
    words = aimed_plan(FAULT, worker="fingerprint", seconds=5, seed=3).words(Path("out"))
    assert words[words.index("--fault") + 1] == FAULT.name
    assert words[words.index("--requirements") + 1] == "LORA-4,SALT-1"
    everything = wide_plan(FAULT, worker="fingerprint", seconds=5, seed=3).words(Path("out"))
    assert "--requirements" not in everything
    assert everything[everything.index("--cells") + 1] == "default,tight"


def test_the_unmodified_engine_runs_in_the_cells_of_all_faults() -> None:
    """Otherwise an alarm in such a cell could be false without being noticed."""
    words = clean_plan(list(FAULTS.values()), worker="fingerprint", seconds=5, seed=3).words(Path("out"))
    assert "--fault" not in words
    cells = words[words.index("--cells") + 1].split(",")
    assert {"default", "tight", "events", "groups-window"} <= set(cells)


def test_a_fault_of_layers_that_no_model_has_is_not_run_with_the_model_there() -> None:
    """Its cell is left out, and another one replaces it only if it fits."""
    fault = msgspec.structs.replace(FAULT, cells=("groups-five", "tight"))
    assert fault_cells(fault, "model") == ("tight",)


@pytest.mark.parametrize("names", [None, FAULT.mechanism, FAULT.name])
def test_faults_are_chosen_by_name_or_mechanism(names: str | None) -> None:
    """Without a name, all are chosen."""
    assert FAULT in select_faults(names, "fingerprint")


NOT_IN_A_MODEL = "image_caches"  # faults of the fingerprint worker only


@pytest.mark.parametrize(
    "arguments",
    [
        ["--faults", "nope"],
        ["--faults", NOT_IN_A_MODEL, "--worker", "model"],
        ["--budget", "soon"],
        ["--worker", "nope"],
    ],
)
def test_bad_arguments_are_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """It gives exit code 4 before anything runs."""
    try:
        code = command_line.main(["power", *arguments])
    except SystemExit as left:
        code = left.code
    assert code == 4
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        (CAUGHT, Outcome.CAUGHT),
        (ELSEWHERE, Outcome.CAUGHT),
        (SURVIVED, Outcome.SURVIVED),
        (UNREACHED, Outcome.NEVER_ACTED),
        (BROKEN, Outcome.NO_ENGINE),
        (EQUIVALENT, Outcome.EQUIVALENT),
    ],
    ids=lambda value: value.name if isinstance(value, FaultRow) else "",
)
def test_the_outcome_of_a_fault(measured: FaultRow, expected: Outcome) -> None:
    """A run that broke detects nothing, and a fault that never acted did not survive."""
    assert measured.outcome is expected


def test_figures_leave_out_equivalent_faults() -> None:
    """The equivalent fault is in no figure, and the first detection is the one with the fewest requests."""
    measured = figures(results(CAUGHT, ELSEWHERE, SURVIVED, UNREACHED, BROKEN, EQUIVALENT))
    assert (measured.counted, measured.caught, measured.by_own, measured.short) == (5, 2, 1, 1)
    assert (measured.median_requests, measured.worst_requests) == (46.5, 90)
    assert (measured.literal, measured.false_alarms, measured.clean_requests) == (1, 0, 20)


def test_a_detection_on_the_unmodified_engine_is_a_false_alarm() -> None:
    """The headline has it."""
    assert "1 false positive in" in headline(results(CAUGHT, clean=suite_run(seen())))


def test_the_page_has_everything_and_escapes_it() -> None:
    """It has the survivors and the matrix with a column for each requirement and script, and escapes text of the
    engine.
    """
    measured = results(CAUGHT, ELSEWHERE, SURVIVED, UNREACHED, BROKEN, EQUIVALENT)
    page = render_power(measured)
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page
    assert page.index("Survived: the fault acted") < page.index("Kill matrix</h2>")
    assert columns(measured) == ["LORA-4", "SALT-1"]
    assert all(f'id="fault-{name}"' in page for name in ("caught", "survivor", "equivalent"))
    assert 'http-equiv="Content-Security-Policy"' in page
    assert page == render_power(msgspec.json.decode(encode(measured), type=PowerResults))


def example(requirement: str, requests: int, *, found: bool, at: float) -> dict[str, Any]:
    """Return an example as a run writes it."""
    return {
        "event": "example",
        "at": at,
        "requirement": requirement,
        "cell": "default",
        "history": {"outcomes": [{}] * requests},
        "findings": [{}] if found else [],
        "evidence": {},
        "weight_pairs": [],
        "reach": {},
        "seen": [],
    }


def test_requests_are_counted_up_to_the_first_example_that_failed(tmp_path: Path) -> None:
    """Requests of other requirements before it count too. A failed example of another requirement is not the one."""
    events = [
        example("LORA-4", 5, found=False, at=1.0),
        example("LORA-4", 6, found=True, at=2.0),
        example("SALT-1", 7, found=True, at=3.0),
        example("SALT-1", 8, found=True, at=4.0),
    ]
    file = tmp_path / "events.ndjson"
    file.write_text("".join(json.dumps(event, separators=(",", ":")) + "\n" for event in events))
    assert requests_until_failure(read_events(file), "SALT-1", "default") == (18, 3.0)
    assert requests_until_failure(read_events(file), "SALT-1", "tight")[0] == 26


@pytest.mark.parametrize(("code", "problem"), [(0, ""), (1, ""), (6, ""), (3, "exit code 3")])
def test_a_run_that_shows_nothing_has_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, problem: str
) -> None:
    """Where every requirement is inconclusive, the fault was missed; it did not keep the engine from running."""
    monkeypatch.setattr(suites, "run_in_fork", lambda *_: code)
    monkeypatch.setattr(suites, "read", lambda _path, _command, said: said)
    plan = clean_plan([], worker="fingerprint", seconds=1.0, seed=1)
    assert suites.run(plan, tmp_path / "run") == problem  # type: ignore[comparison-overlap]


def test_a_run_without_events_is_a_problem(tmp_path: Path) -> None:
    """It is not a survivor."""
    measured = read(tmp_path / "none", "command", "")
    assert measured.problem
    assert fault_outcome(FAULT, [measured]) is Outcome.NO_ENGINE


@pytest.mark.parametrize(("acted", "outcome"), [(True, Outcome.CAUGHT), (False, Outcome.NEVER_ACTED)])
def test_a_violation_is_the_effect_of_a_fault_only_if_it_acted(acted: bool, outcome: Outcome) -> None:
    """An engine may be violated otherwise, and a fault that cannot be installed well fails by its own error."""
    assert fault_outcome(FAULT, [suite_run(seen(), acted=acted)]) is outcome


@pytest.mark.parametrize("guided", [True, False])
def test_runs_are_guided_if_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, guided: bool) -> None:
    """This holds for runs against a fault and for those of the unmodified engine."""
    plans: list[RunPlan] = []

    def run(plan: RunPlan, folder: Path) -> SuiteRun:
        plans.append(plan)
        return suite_run(*())

    monkeypatch.setattr(suites, "run", run)
    measurement = Measurement(
        worker="fingerprint", seed=1, aimed_seconds=1, wide_seconds=1, out=tmp_path, scripts=False, guided=guided
    )
    measurement.row(FAULT)
    measurement.clean([FAULT], 1)
    assert len(plans) == 3
    assert all(("--guided" in plan.words(tmp_path)) is guided for plan in plans)


def test_what_was_measured_is_not_measured_again(tmp_path: Path) -> None:
    """An interrupted measurement continues where it stopped."""
    measurement = Measurement(
        worker="fingerprint", seed=1, aimed_seconds=1, wide_seconds=1, out=tmp_path, scripts=False
    )
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / f"{FAULT.name}.json").write_bytes(msgspec.json.encode(CAUGHT))
    assert measurement.row(FAULT) == CAUGHT


@pytest.mark.parametrize(
    ("measured", "missing", "said"),
    [(-1, 4, "measured before"), (0, 3, "measured before"), (2, 3, "about 60\u202fs left")],
)
def test_rows_of_an_earlier_measurement_do_not_shorten_the_time_that_is_left(
    measured: int, missing: int, said: str
) -> None:
    """They take no time now, so only what is measured now counts for the pace."""
    assert measure.time_left(40.0, measured, missing) == said


@pytest.mark.parametrize(
    ("mode", "found", "runs"),
    [
        ("always", True, ["aimed", "wide"]),
        ("missed", True, ["aimed"]),
        ("missed", False, ["aimed", "wide"]),
        ("never", False, ["aimed"]),
        ("smoke", True, ["smoke"]),
    ],
)
def test_all_requirements_test_a_fault_if_chosen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: str, found: bool, runs: list[str]
) -> None:
    """They use the comparison rule of the unmodified engine, which is calibrated once."""
    plans: list[tuple[str, Path | None]] = []

    def run(plan: RunPlan, folder: Path) -> SuiteRun:
        plans.append((folder.name, plan.calibration))
        (folder / "report").mkdir(parents=True)
        (folder / "report" / "results.json").write_text("{}")
        return suite_run(*(seen(FAULT.about[0], requests=3) for _ in range(found)))

    monkeypatch.setattr(suites, "run", run)
    measurement = Measurement(
        worker="model",
        seed=1,
        aimed_seconds=1,
        wide_seconds=1,
        out=tmp_path,
        wide=mode,
        scripts=False,
    ).calibrated()
    measurement.calibrated().row(FAULT)
    rule = tmp_path / "runs" / "calibration" / "report" / "results.json"
    assert plans == [("calibration", None), *((name, rule) for name in runs)]


@pytest.mark.parametrize(
    ("clean", "code"),
    [(suite_run(), 0), (suite_run(seen()), 1), (suite_run(problem="exit code 3"), 1)],
    ids=["nothing", "a false alarm", "a run that broke"],
)
def test_only_a_clean_run_that_was_made_counts_as_clean(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, clean: SuiteRun, code: int
) -> None:
    """A run that did not reach its end has no false alarm, but has shown nothing."""
    monkeypatch.setattr(power, "measure_power", lambda *_, **__: results(CAUGHT, clean=clean))
    assert command_line.main(["power", "--out", str(tmp_path)]) == code
    assert (tmp_path / "index.html").exists()


@pytest.mark.parametrize("command", ["power", "noise"])
def test_a_trained_model_is_measured_with_its_flags_and_its_own_calibration(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str
) -> None:
    """The worker is the one with a model. A slow model is calibrated for as long as four faults are measured."""
    plans: list[RunPlan] = []

    def run(plan: RunPlan, folder: Path, *_: Any, **__: Any) -> SuiteRun:
        plans.append(plan)
        return suite_run(acted=True)

    monkeypatch.setattr(suites, "run", run)
    words = ["--model", "smollm2", "--engine-args=--dtype bfloat16", "--faults", FAULT.name, "--budget", "60s"]
    words += ["--out", str(tmp_path)]
    if command == "power":
        command_line.main(["power", *words, "--wide", "never", "--clean-runs", "1", "--no-literal", "--jobs", "1"])
    else:
        command_line.main(["noise", "faults", *words, "--noise", "none"])
    assert {(plan.worker, plan.served.model, plan.served.engine_args) for plan in plans} == {
        ("model", "smollm2", "--dtype bfloat16")
    }
    assert (plans[0].requirements, plans[0].seconds) == (("REUSE-1",), 240)
    assert FAULT.name in [plan.fault for plan in plans]
    words = plans[-1].words(tmp_path)
    assert words[words.index("--model") + 1] == "smollm2"
    assert "--engine-args=--dtype bfloat16" in words
    assert list(tmp_path.glob("**/*smollm2-dtype-bfloat16*"))  # beside the results of the generated model


def test_the_field_scripts_run_on_the_same_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """They get the flags of the model."""
    commands: list[list[str]] = []
    monkeypatch.setattr(measure, "run_in_fork", lambda _seconds, _function, words, _folder: commands.append(words))
    served = suites.Served(model="smollm2", engine_args="--dtype bfloat16")
    measurement = Measurement(worker="model", seed=1, aimed_seconds=1, wide_seconds=1, out=tmp_path, served=served)
    assert measurement.literally(FAULT.name, tmp_path / "literal") == []
    assert commands[0][commands[0].index("--model") + 1] == "smollm2"
    assert "--engine-args=--dtype bfloat16" in commands[0]


def test_the_fingerprint_worker_serves_no_trained_model(capsys: pytest.CaptureFixture[str]) -> None:
    """The message says what to do."""
    assert command_line.main(["power", "--model", "smollm2", "--worker", "fingerprint"]) == 4
    assert "leave it out" in capsys.readouterr().err


@pytest.mark.parametrize(("reports", "acted"), [([False, True, False], True), ([False, False], False), ([], False)])
def test_a_fault_that_acted_in_any_worker_has_acted(reports: list[bool], acted: bool) -> None:
    """Each of several workers has its own engines."""
    fault = injected_fault(
        {"name": "n", "summary": "s", "stands_for": "f"}, [{"event": "fault", "acted": one} for one in reports]
    )
    assert fault is not None
    assert fault.acted is acted


def test_a_case_that_may_be_a_known_issue_is_no_detection() -> None:
    """In a short run the time may not suffice to find its cause."""
    undecided = Attribution(basis=Basis.UNDECIDED, candidates=["vllm/one"])
    new = Attribution(basis=Basis.NEW)
    assert report_samples.case(attribution=undecided).may_be_known
    assert report_samples.case(attribution=Attribution(basis=Basis.NOT_TRIED)).may_be_known
    assert not report_samples.case(attribution=new).may_be_known
    assert not report_samples.case().may_be_known


def test_a_violation_behind_the_first_one_is_a_detection_as_well() -> None:
    """The first case may be a known cause, while the fault shows in what the trial has found behind it."""
    cases = {name: report_samples.case(id=name) for name in ("first", "waived", "behind")}
    further = [
        {"case": "waived", "verdict": Verdict.KNOWN_ISSUE.value},
        {"case": "behind", "verdict": Verdict.VIOLATED.value},
    ]
    assert [one.id for one in violating({"case": "first", "further": further}, cases)] == ["first", "behind"]
