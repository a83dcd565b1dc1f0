"""Which of several runs are comparable, and how they differ."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support import report_samples as samples
from support.side_by_side_samples import run, source

from coldproof.harness.schema.results import InjectedFault, PlantedRepair, Results, SelfTestRow
from coldproof.reports.side_by_side.columns import Column, cells_of
from coldproof.reports.side_by_side.comparable_runs import comparable_groups, differences, notes
from coldproof.reports.views.run_facts import LARGE_FACTOR

BLIND = [SelfTestRow(planted="x", caught=False, said="")]
CALIBRATION = samples.results().calibration
assert CALIBRATION is not None


def named(**runs: Results) -> list[Column]:
    """Return runs by their labels."""
    return [Column(label, label, source(results), cells_of(results)) for label, results in runs.items()]


def with_requirements(share: float, *ids: str) -> dict[str, Any]:
    """Return requirements, each in one cell with this many seconds."""
    return {"requirements": [samples.requirement(name, "x", samples.cell(share=share)) for name in ids or ("A-1",)]}


DECISIVE = {
    "profile": {"profile": "smoke"},
    "worker": {"worker": "fingerprint"},
    "oracle": {"calibration": msgspec.structs.replace(CALIBRATION, oracle="same-engine")},
    "comparison rule": {"calibration": msgspec.structs.replace(CALIBRATION, exact=False, noise_nats=0.02)},
    "injected fault": {"fault": InjectedFault(name="f", summary="s", stands_for="f", acted=True)},
    "repairs": {"repairs": [PlantedRepair(name="vllm/f", title="t")]},
    "Coldproof": {"coldproof_version": "0.2.0"},
}
MINOR = {
    "seed": {"seed": "7"},
    "known issues": {"waivers": []},
    "machine": {"environment": {"machine": "arm64"}},
    "commit of Coldproof": {"environment": {"coldproof commit": "1234567"}},
}


@pytest.mark.parametrize("what", DECISIVE)
def test_a_decisive_difference_separates_runs(what: str) -> None:
    """Such a difference comes first with its values, and the run is not compared."""
    runs = named(A=run(), B=run(), C=run(**DECISIVE[what]))
    found = differences(runs)
    assert found[0].what == what
    assert found[0].decisive
    assert [labels for _, labels in found[0].sides] == [["A", "B"], ["C"]]
    assert comparable_groups(runs) == [
        "Can be compared with each other: A and B.",
        f"Not comparable with the other runs: C. Differs from A in: {what}.",
    ]


@pytest.mark.parametrize("what", MINOR)
def test_a_minor_difference_is_reported_and_separates_nothing(what: str) -> None:
    """Another seed is usual and does not matter."""
    runs = named(A=run(), B=run(**MINOR[what]))
    (found,) = differences(runs)
    assert (found.what, found.decisive) == (what, False)
    assert comparable_groups(runs) == ["Can be compared with each other: A and B."]


def test_engines_adapters_and_cells_are_what_one_compares() -> None:
    """Engines, adapters and cells are not reported as differences."""
    other = run("SGLang", "0.5", adapter="sglang", requirements=[samples.requirement("A-1", "x", samples.cell("c"))])
    assert differences(named(A=run(**with_requirements(0.0)), B=other)) == []


@pytest.mark.parametrize(
    ("shares", "apart"),
    [
        ((10.0, 10.0 * LARGE_FACTOR - 1), False),
        ((10.0, 10.0 * LARGE_FACTOR), True),
        ((10.0 * LARGE_FACTOR, 10.0), True),
        ((10.0, 0.0), False),
        ((0.0, 0.0), False),
    ],
)
def test_a_very_different_budget_separates_runs(shares: tuple[float, float], apart: bool) -> None:
    """The time per requirement and cell is compared, so a run with more requirements is not penalised."""
    runs = named(A=run(**with_requirements(shares[0])), B=run(**with_requirements(shares[1], "A-1", "A-2", "A-3")))
    assert [one.what for one in differences(runs)] == (["budget"] if apart else [])
    assert len(comparable_groups(runs)) == 1 + apart


def test_one_commit_is_one_suite_whatever_its_package_says() -> None:
    """A checkout that is not installed has no version, and an installation has no commit."""

    def at(version: str, commit: str) -> Results:
        return run(coldproof_version=version, environment={"coldproof commit": commit})

    assert differences(named(A=at("0.1.0", "1234567"), B=at("not installed", "1234567"))) == []
    unknown = differences(named(A=at("0.1.0", "unknown"), B=at("not installed", "unknown")))
    assert [one.what for one in unknown] == ["Coldproof"]


def test_the_noise_floor_matters_under_the_margin_rule_only() -> None:
    """A token-exact comparison has no noise."""

    def measured(nats: float, *, exact: bool) -> Results:
        return run(calibration=msgspec.structs.replace(CALIBRATION, exact=exact, noise_nats=nats))

    assert differences(named(A=measured(0.0, exact=True), B=measured(0.001, exact=True))) == []
    (found,) = differences(named(A=measured(0.01, exact=False), B=measured(0.02, exact=False)))
    assert found.values == "0.01 nats in A; 0.02 nats in B"


def test_the_largest_group_stands_first_and_the_others_say_why_they_are_apart() -> None:
    """Each run is in exactly one group."""
    smoke = {"profile": "smoke"}
    runs = named(A=run(), B=run(**smoke), C=run(**smoke), D=run(**smoke, worker="fingerprint"))
    assert comparable_groups(runs) == [
        "Can be compared with each other: B and C.",
        "Not comparable with the other runs: A. Differs from B in: profile.",
        "Not comparable with the other runs: D. Differs from B in: worker.",
    ]


def test_a_run_that_is_comparable_with_part_of_a_group_is_separate() -> None:
    """Budgets are similar within a factor, so a third run may be similar to only one of a group."""
    seconds = {"A": 10.0, "B": 10.0 / LARGE_FACTOR * 1.1, "C": 10.0 * LARGE_FACTOR / 1.1}
    runs = named(**{label: run(**with_requirements(share)) for label, share in seconds.items()})
    assert comparable_groups(runs) == [
        "Can be compared with each other: A and B.",
        "Not comparable with the other runs: C. Differs from B in: budget.",
    ]


def test_an_invalid_run_is_compared_with_none() -> None:
    """The run is reported as invalid, and its requirements are not missed in other runs."""
    runs = named(A=run(**with_requirements(0.0)), B=run(**with_requirements(0.0, "A-1", "A-2"), selftest=BLIND))
    assert comparable_groups(runs) == ["Not comparable with the other runs: A."]
    (note,) = notes(runs)
    assert note.startswith("The run of B is invalid")


def test_requirements_that_a_run_lacks_are_named_or_counted() -> None:
    """A few are named, more are counted, and an interrupted run is reported as incomplete."""
    ids = [f"A-{place}" for place in range(8)]
    runs = named(
        A=run(**with_requirements(0.0, *ids)),
        B=run(**with_requirements(0.0, *ids[2:]), complete=False),
        C=run(**with_requirements(0.0, "A-1")),
    )
    assert notes(runs) == [
        "The run of B is incomplete. Requirements that did not run are not verified.",
        "Not in the run of B: A-0 and A-1.",
        "Not in the run of C: 7 of these 8 requirements.",
    ]


def test_of_one_run_there_is_nothing_to_compare() -> None:
    """There is no sentence and no difference."""
    runs = named(A=run())
    assert (comparable_groups(runs), differences(runs), notes(runs)) == ([], [], [])


# A series: runs of one engine, each after the other


ENGINE = run().engine
assert ENGINE is not None
OTHER = {
    "engine": {"engine": msgspec.structs.replace(ENGINE, name="SGLang")},
    "adapter": {"engine": msgspec.structs.replace(ENGINE, adapter="endpoint")},
}


@pytest.mark.parametrize("what", OTHER)
def test_runs_of_a_series_should_have_one_engine(what: str) -> None:
    """Another engine or adapter is told of a series only."""
    runs = named(A=run(), B=run(**OTHER[what]))
    assert [one.what for one in differences(runs, series=True)] == [what]
    assert comparable_groups(runs, series=True)[1].endswith(f"Differs from A in: {what}.")
    assert differences(runs) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"version": "0.33.0"},
        {"started": "2026-03-02T12:00:00+02:00"},
        {"started": "yesterday"},
        {"started": "2026-02-01T12:00:00"},
        {"duration_s": 1.0},
        {"calibration": msgspec.structs.replace(CALIBRATION, rule="other words", noise_nats=0.1)},
    ],
)
def test_what_may_differ_in_a_series_is_not_told(changes: dict[str, Any]) -> None:
    """A new version is what one compares for; a time that cannot be read says nothing."""
    runs = named(A=run(), B=run(**changes))
    assert differences(runs, series=True) == []
    assert notes(runs, series=True, by_time=True) == []


def test_cells_that_a_run_of_a_series_lacks_are_named() -> None:
    """The cells of different engines differ by nature."""
    cells = (samples.cell("default"), samples.cell("tight"))
    runs = named(
        A=run(requirements=[samples.requirement("A-1", "x", *cells)]),
        B=run(requirements=[samples.requirement("A-1", "x", cells[0])]),
    )
    assert notes(runs, series=True) == ["Not in the run of B: cell tight."]
    assert notes(runs) == []


def test_runs_in_the_wrong_order_may_be_swapped() -> None:
    """Where the columns are in the order of time."""
    runs = named(A=run(), B=run(started="2026-02-28T12:00:00Z"))
    assert notes(runs, by_time=True) == ["The run of B started before that of A. The runs may be swapped."]
    assert notes(runs, series=True) == []
