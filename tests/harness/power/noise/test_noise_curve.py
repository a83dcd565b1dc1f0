"""The curve has the false alarms and the detections for all thresholds times a factor, and a page shows it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.case_samples import BAND

from coldproof.harness.cli.main import main
from coldproof.harness.judgement.finding import Rule
from coldproof.harness.power.measure import select_faults
from coldproof.harness.power.noise import without_faults
from coldproof.harness.power.noise.curve import detection_curves, is_detected
from coldproof.harness.power.noise.with_faults import Level as FaultsLevel
from coldproof.harness.power.noise.with_faults import NoisyRun, fault_row, row_path
from coldproof.harness.power.noise.without_faults import (
    CleanMeasurement,
    JudgedRequest,
    Level,
    clean_level,
    draw_workload,
)
from coldproof.harness.schema.noise import FACTORS, CleanLevel, FaultLevel, NoiseResults, NoisyFault
from coldproof.harness.schema.power import SuiteRun
from coldproof.reports.noise_curve.noise_curve import headline, render_noise, upper_bound

NOISE = "gaussian:0.05"


def judged_as(excess: float, *, accused: bool = False) -> JudgedRequest:
    """Return one clean request."""
    return JudgedRequest(excess=excess, flips=0, parted=excess > 0.3, hit=True, accused=accused)


def clean(*rows: JudgedRequest) -> CleanLevel:
    """Return clean requests at one level."""
    kept = CleanMeasurement(rows=list(rows), band=BAND, rule="by scores", none="", seconds=1.0)
    return clean_level(Level(worker="fingerprint", noise=NOISE, cell="default", requests=len(rows)), kept)


@pytest.mark.parametrize(("seconds", "judged"), [(math.inf, 3), (100.0, 2), (39.0, 1)])
def test_a_measurement_ends_before_a_workload_for_which_there_is_no_time(
    seconds: float, judged: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A workload is expected to take as long as the longest one before it. What was judged until then is stored."""
    now = [0.0]

    def judge_workload(*_: object, **__: object) -> None:
        now[0] += 40.0

    monkeypatch.setattr(without_faults, "judge_workload", judge_workload)
    monkeypatch.setattr(without_faults, "judged_requests", lambda *_: [judged_as(0.1)])
    wanted = Level(worker="model", noise=None, cell="default", requests=3, seconds=seconds)
    measured = CleanMeasurement(rows=[], band=BAND, rule="by scores", none="", seconds=0.0)
    file = tmp_path / "stored.json"
    engines: Any = None
    without_faults.judge_workloads(
        engines, Rule(exact=True), measured, wanted, seed=1, say=lambda _: None, file=file, clock=lambda: now[0]
    )
    assert (len(measured.rows), measured.seconds) == (judged, 40.0 * judged)
    assert file.exists()


def fault(name: str, excess: float, **changes: Any) -> NoisyFault:
    """Return one fault, detected by default."""
    facts: dict[str, Any] = {"outcome": "caught", "caught": True, "acted": True, "needs_no_threshold": False}
    return NoisyFault(name=name, mechanism="m", excess=excess, **{**facts, **changes})


def level(*rows: NoisyFault, of: int = 3) -> FaultLevel:
    """Return faults at the same level."""
    return FaultLevel(worker="fingerprint", noise=NOISE, of=of, faults=list(rows), budget=8.0)


FAULTS = (
    fault("far", 12.0),
    fault("near", 0.7, caught=False, outcome="survived"),
    fault("counted", 0.1, needs_no_threshold=True),
)
CLEAN = (judged_as(0.12), judged_as(0.42), judged_as(0.56))


def results(*, of: int = 3) -> NoiseResults:
    """Return a complete measurement."""
    cleaned, hurt = [clean(*CLEAN)], [level(*FAULTS, of=of)]
    return NoiseResults(
        coldproof_version="1",
        written="now",
        engine="vllm 1",
        clean=cleaned,
        faults=hurt,
        curves=detection_curves(cleaned, hurt),
    )


def test_smaller_thresholds_give_more_alarms_and_detections() -> None:
    """Neither number ever grows with the threshold."""
    (curve,) = results().curves
    assert [point.factor for point in curve.points] == list(FACTORS)
    for name in ("alarms", "caught"):
        counts = [getattr(point, name) for point in curve.points]
        assert counts == sorted(counts, reverse=True)
    by_factor = {point.factor: (point.alarms, point.caught) for point in curve.points}
    assert by_factor[0.1] == (3, 3)
    assert by_factor[0.5] == (1, 3)
    assert by_factor[0.6] == (0, 3)
    assert by_factor[1.0] == (0, 2)
    assert by_factor[20.0] == (0, 1)  # what is found by its count


def test_an_alarm_that_no_threshold_keeps_off_is_an_alarm_everywhere() -> None:
    """A count may cause it, for example; no factor removes such an alarm."""
    cleaned = [clean(*CLEAN, judged_as(0.1, accused=True))]
    (curve,) = detection_curves(cleaned, [level(*FAULTS)])
    assert [point.alarms for point in curve.points if point.factor >= 0.6] == [1] * 10


def test_a_fault_unconfirmed_at_the_operating_point_is_not_caught_beyond_it() -> None:
    """This holds however large its deviation is."""
    strayed = fault("strayed", 5.0, caught=False)
    assert [is_detected(strayed, factor) for factor in (0.5, 1.0, 2.0)] == [True, False, False]
    silent = fault("silent", 0.4, caught=False, acted=False)
    assert not is_detected(silent, 0.1)
    assert [is_detected(FAULTS[0], factor) for factor in (0.5, 1.0, 10.0, 20.0)] == [True, True, True, False]


def test_levels_that_were_measured_on_one_side_only_have_no_curve() -> None:
    """Faults alone show no rate of false alarms."""
    assert detection_curves([], [level(*FAULTS)]) == []
    assert detection_curves([clean(*CLEAN)], []) == []
    assert detection_curves([msgspec.structs.replace(clean(*CLEAN), band=None)], [level(*FAULTS)]) == []


def test_none_in_so_many_is_no_rate_of_zero() -> None:
    """The rule of three gives the bound. The rate of a hundred alarms is known more precisely."""
    assert upper_bound(0, 100_000) == pytest.approx(3e-5)
    assert upper_bound(0, 0) == 1.0
    assert 100 / 1000 < upper_bound(100, 1000) < 0.13


def test_the_page_has_the_curve_and_what_is_not_measured_yet() -> None:
    """The page has the operating point, the table and the survivors, and escapes the text of a fault."""
    whole = results()
    page = render_noise(whole)
    assert page.count("(operating point)") == 1
    assert page.count('class="dot tone0 operating"') == 1
    assert "near" in page
    assert "not measured yet" not in headline(whole)
    partly = results(of=218)
    assert "2 of 3 faults (of 218; the others are not measured yet) detected under gaussian:0.05" in headline(partly)
    assert "a sample of all" in render_noise(partly)
    silent = level(*FAULTS, fault("silent", 0.1, caught=False, outcome="never acted"))
    assert "1 others never acted within 8 s" in headline(msgspec.structs.replace(whole, faults=[silent]))
    bad = level(fault("<script>", 0.1, caught=False, sentence="<b>"))
    assert "<script>alert" not in render_noise(msgspec.structs.replace(whole, faults=[bad]))
    assert "&lt;b&gt;" in render_noise(msgspec.structs.replace(whole, faults=[bad]))


def test_the_outcome_of_a_fault_without_findings() -> None:
    """A fault survives if it acted, and otherwise it never acted. A run that broke is neither."""
    run = SuiteRun(detections=[], verdicts={}, examples=1, requests=9, seconds=1.0, acted=True, command="")
    one = select_faults(None, "fingerprint")[0]
    for changes, outcome in (({}, "survived"), ({"acted": False}, "never acted"), ({"problem": "x"}, "engine does")):
        found = fault_row(one, msgspec.structs.replace(run, **changes), NoisyRun())
        assert (found.caught, found.outcome.startswith(outcome)) == (False, True)
    found = fault_row(one, run, NoisyRun(max_deviation=float("inf"), sentence="wrong", by="LORA-1"))
    assert (found.caught, found.by) == (True, "LORA-1")
    assert found.excess < float("inf")


def test_clean_workloads_hit_and_differ() -> None:
    """Every prompt is sent twice, by three identities, and another seed gives other prompts."""
    import random

    one, other = draw_workload(random.Random(1)), draw_workload(random.Random(2))
    assert one != other
    assert one == draw_workload(random.Random(1))
    requests = [request for _, _, request in one.requests()]
    assert {request.adapter for request in requests} == {None, "left", "right"}
    assert len(requests) == 2 * len({(str(request.prompt), request.adapter) for request in requests})


def test_draw_makes_both_files_from_stored_measurements(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """This works while faults are still being measured."""
    assert main(["noise", "draw", "--out", str(tmp_path)]) == 4
    assert "no measurements in" in capsys.readouterr().err
    (tmp_path / "clean").mkdir()
    (tmp_path / "clean" / "a.level.json").write_bytes(msgspec.json.encode(clean(*CLEAN)))
    (tmp_path / "faults").mkdir()
    (tmp_path / "faults" / "a.level.json").write_bytes(msgspec.json.encode(level(*FAULTS)))
    assert main(["noise", "draw", "--out", str(tmp_path)]) == 0
    read = msgspec.json.decode((tmp_path / "curve.json").read_bytes(), type=NoiseResults)
    assert read.curves == results().curves
    assert "3 noisy requests without a fault" in (tmp_path / "index.html").read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["clean", "--cell", "nowhere"], "unknown cell"),
        (["clean", "--noise", "loud"], "is not a noise setting"),
        (["faults"], "--noise gaussian:0.05"),
        (["faults", "--noise", "gaussian:0.1", "--faults", "none-such"], "unknown fault"),
        (["faults", "--noise", "gaussian:0.1", "--budget", "soon"], "invalid duration"),
    ],
)
def test_bad_input_is_one_line(words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It gives exit code 4 before anything starts."""
    assert main(["noise", *words, "--out", str(tmp_path)]) == 4
    assert says in capsys.readouterr().err


def test_rows_are_kept_by_level(tmp_path: Path) -> None:
    """A measurement can therefore continue where it stopped."""
    one = select_faults(None, "fingerprint")[0]
    files = [
        row_path(FaultsLevel(worker="fingerprint", noise=noise, budget=8.0, seed=1), one, tmp_path)
        for noise in (NOISE, "gaussian:0.1")
    ]
    assert files[0] != files[1]
