"""The merged report of many runs has a column for each machine, engine and cell, merges seeds, and counts each run
once.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support import bundles
from support.fleets import done, fleet, matrix, store_in, units
from support.page import Page

from coldproof.harness.fleet.matrix import MatrixRun
from coldproof.harness.fleet.merge.results import fleet_results
from coldproof.harness.fleet.merge.unit_report import Part, copy_cases, with_unique_case_names
from coldproof.harness.schema.case import TRACE, read_case
from coldproof.harness.schema.results import Results
from coldproof.harness.schema.verdict import Verdict
from coldproof.reports.assemble.assemble import Event
from coldproof.reports.exports.junit import junit_xml
from coldproof.reports.exports.markdown_summary import summary_markdown
from coldproof.reports.exports.write import write_all
from coldproof.reports.run_report.run_report import render_html

TWICE = matrix(
    MatrixRun(engine="llamacpp", machines=("cpu", "h200"), cells=("llamacpp", "llamacpp-one-slot"), seeds=(1, 2)),
    machines=("cpu", "h200"),
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Part]]:
    """Return finished runs of two cells with two seeds on two kinds of machines. No test changes them."""
    folder = tmp_path_factory.mktemp("fleet")
    with pytest.MonkeyPatch.context() as patched:
        bundles.small_list(folder, patched)
        store = store_in(folder / "out")
        found = [done(store, unit, began=1000.0 + 60 * place) for place, unit in enumerate(units(TWICE))]
    return store.folder, found


def changed(one: Part, kind: str, **fields: Any) -> Part:
    """Return a run in which all events of a kind have these fields."""
    return dataclasses.replace(one, log=[{**e, **fields} if e["event"] == kind else e for e in one.log])


def is_verdict(event: Event, requirement: str) -> bool:
    """Return whether an event is the verdict of this requirement."""
    return event["event"] == "verdict" and event["requirement"] == requirement


def whole(parts: list[Part]) -> Results:
    """Return the merged report."""
    return fleet_results(fleet(), with_unique_case_names(parts))


def test_a_column_is_a_machine_an_engine_and_a_cell(runs: tuple[Path, list[Part]]) -> None:
    """The seeds of a column are added, and each example is in the totals once."""
    results = whole(runs[1])
    chat = next(one for one in results.requirements if one.id == "CHAT-9")
    assert {cell.cell: cell.examples for cell in chat.cells} == {
        f"{machine} / llamacpp / {cell}": 30 for machine in ("cpu", "h200") for cell in ("one", "two")
    }
    alone = [whole([one]) for one in runs[1]]
    assert results.totals["examples"] == sum(one.totals["examples"] for one in alone) == 124
    assert results.totals["requests"] == sum(one.totals["requests"] for one in alone)
    assert (results.complete, results.exit_code, results.totals["requirements"]) == (True, 0, 3)
    assert results.headline.startswith("CONFORMANT, known issues aside — of 3 requirements on scripted 1")


def test_the_worst_of_the_seeds_stands(runs: tuple[Path, list[Part]]) -> None:
    """Only its own column gets the verdict; the others keep theirs, and the whole is not conformant."""
    bad = changed(runs[1][1], "verdict", verdict="VIOLATED", reason="second seed")
    results = whole([runs[1][0], bad, *runs[1][2:]])
    chat = next(one for one in results.requirements if one.id == "CHAT-9")
    assert {cell.cell: cell.verdict for cell in chat.cells} == {
        "cpu / llamacpp / one": Verdict.VIOLATED,
        "cpu / llamacpp / two": Verdict.CONFORMS,
        "h200 / llamacpp / one": Verdict.CONFORMS,
        "h200 / llamacpp / two": Verdict.CONFORMS,
    }
    assert (chat.reason, results.exit_code) == ("second seed", 1)


def test_what_a_failed_run_did_not_conclude_is_an_error(runs: tuple[Path, list[Part]]) -> None:
    """Verdicts that the run did reach are kept."""
    one = runs[1][0]
    assert one.record is not None
    broke = dataclasses.replace(
        one,
        record=msgspec.structs.replace(one.record, exit_code=3, problem="its disk was full"),
        log=[e for e in one.log if e["event"] != "verdict" or e["requirement"] != "CHAT-9"],
    )
    results = whole([broke, *runs[1][2:]])
    found = {(r.id, cell.cell): cell for r in results.requirements for cell in r.cells}
    errors = {place: cell.reason for place, cell in found.items() if cell.verdict is Verdict.ERROR}
    assert errors == {("CHAT-9", "cpu / llamacpp / one"): "its disk was full"}
    assert found["EVENT-9", "cpu / llamacpp / one"].verdict is Verdict.UNSUPPORTED
    assert (results.exit_code, results.complete) == (3, False)


def test_what_has_not_run_is_named_and_the_whole_is_no_pass(runs: tuple[Path, list[Part]]) -> None:
    """The state is that after Ctrl-C."""
    unit = runs[1][3].unit
    parts = with_unique_case_names([*runs[1][:3], Part(unit, None, [], "")])
    results = fleet_results(fleet(interrupted=True), parts)
    assert results.problem == (
        f"the fleet was interrupted: 1 of 4 runs failed or are missing: {unit.id}: it has not run"
    )
    assert (results.exit_code, results.complete, results.fleet[3].state) == (3, False, "missing")


def test_a_fleet_without_results_is_reported(tmp_path: Path) -> None:
    """The result is a failure of the harness and not a verdict of conformance."""
    results = fleet_results(fleet(), [Part(unit, None, [], "") for unit in units()])
    write_all(results, tmp_path)
    assert (results.exit_code, results.requirements, results.complete) == (3, [], False)


def test_a_failed_self_test_in_one_run_fails_the_whole(runs: tuple[Path, list[Part]]) -> None:
    """Then no verdict counts, and the report names the run."""
    rows = [{"planted": "a bug", "caught": False, "said": "missed"}]
    results = whole([changed(runs[1][0], "selftest", rows=rows), *runs[1][1:]])
    assert results.headline.startswith("RUN INVALID")
    wrong = [row.said for row in results.selftest if not row.caught]
    assert wrong == [f"missed (in {runs[1][0].unit.id})"]


def test_a_verdict_is_allowed_only_if_each_run_allows_it(runs: tuple[Path, list[Part]]) -> None:
    """The --allow-inconclusive of one run does not apply to another."""
    doubtful = {"verdict": "INCONCLUSIVE"}
    logs = [[{**e, **doubtful} if is_verdict(e, "CHAT-9") else e for e in one.log] for one in runs[1]]
    parts = [dataclasses.replace(one, log=log) for one, log in zip(runs[1], logs, strict=True)]
    allowing = [changed(one, "run_started", allowed=["INCONCLUSIVE"]) for one in parts]
    assert whole(allowing).exit_code == 0
    assert whole([*allowing[1:], parts[0]]).exit_code == 1


def test_several_engines_are_named(runs: tuple[Path, list[Part]]) -> None:
    """The headline has name and version of each. Configuration, rule and capabilities say which engine they belong
    to.
    """
    mine, other = runs[1][0], runs[1][4]
    run = msgspec.structs.replace(other.unit.run, name="vLLM")
    theirs = {**bundles.engine(), "name": "vLLM", "version": "0.32.0", "config": {"block_size": "16"}}
    other = dataclasses.replace(other, unit=msgspec.structs.replace(other.unit, run=run))
    results = whole([mine, changed(other, "engine", engine=theirs)])
    assert results.engine is not None
    assert " on 2 engines (scripted 1, vLLM 0.32.0): " in results.headline
    assert {name.partition(": ")[0] for name in results.engine.capabilities} == {"llamacpp", "vLLM"}
    assert [row.engine for row in results.fleet] == ["scripted 1", "vLLM 0.32.0"]


def test_a_case_found_on_two_machines_is_two_and_by_two_seeds_is_one(
    runs: tuple[Path, list[Part]], tmp_path: Path
) -> None:
    """Each case is in its column under a unique name, in the report, its file and its known issue."""
    folder, _ = runs
    parts = with_unique_case_names(runs[1])
    results = fleet_results(fleet(), parts)
    assert {case.id: case.cell for case in results.cases} == {
        "LORA-9-7c21a0f3": "cpu / llamacpp / two",
        "LORA-9-7c21a0f3-2": "h200 / llamacpp / two",
    }
    assert [sorted(waiver.cases) for waiver in results.waivers] == [["LORA-9-7c21a0f3", "LORA-9-7c21a0f3-2"]]
    assert [waiver.state for waiver in results.waivers] == ["used"]
    copy_cases(parts, folder)
    files = [path for path in (folder / "cases").glob("*.json") if not path.name.endswith(TRACE)]
    assert {path.stem: read_case(path).id for path in files} == {case.id: case.id for case in results.cases}
    for case in results.cases:
        assert json.loads((folder / "cases" / f"{case.id}{TRACE}").read_text())["otherData"]["case"] == case.id


def test_a_fleets_times_are_those_during_which_something_ran(runs: tuple[Path, list[Part]]) -> None:
    """The driver's clock is used and not those of the nodes. A pause between two starts of the driver is no work."""
    parts = runs[1]
    assert parts[7].record is not None
    later = dataclasses.replace(parts[7], record=msgspec.structs.replace(parts[7].record, began=90_000.0))
    rows = {"suite_seconds": 30.0, "busy_seconds": 15.0, "engine_starts": [1.0]}
    measured = [dataclasses.replace(one, log=[*one.log, {"event": "measured", "at": 0.0, **rows}]) for one in parts[:7]]
    results = whole([*measured, later])
    assert results.timing.suites == 8 * 60
    assert results.timing.engine_idle_share == 0.5
    assert results.timing.engine_start == [1.0] * 7
    assert results.started == "2026-03-01T00:00:00+00:00"


def test_every_view_shows_the_runs_of_a_fleet(runs: tuple[Path, list[Part]]) -> None:
    """The page links each run's own report. Failed runs stand first, and lost runs are shown."""
    parts = runs[1]
    first = parts[0]
    assert first.record is not None
    lost = dataclasses.replace(first, record=msgspec.structs.replace(first.record, lost=2))
    missing = Part(parts[2].unit, None, [], "")
    results = whole([lost, parts[1], missing])
    page = Page(render_html(results))
    links = [at["href"] for tag, at in page.elements if tag == "a" and at.get("href", "").startswith("units/")]
    assert links == [f"units/{one.unit.id}/index.html" for one in (lost, parts[1])]
    assert "2 lost and repeated" in page.text
    assert page.text.index(missing.unit.id) < page.text.index(lost.unit.id)
    assert "3 runs of a fleet: 2 done, 1 missing, 2 lost and repeated" in summary_markdown(results)
    assert 'classname="coldproof.cpu / llamacpp / one"' in junit_xml(results)


def test_a_run_of_its_own_shows_nothing_of_fleets(runs: tuple[Path, list[Part]]) -> None:
    """It has neither the section nor the line."""
    alone = msgspec.structs.replace(whole(runs[1]), fleet=[])
    assert "fleet" not in " ".join(at.get("id", "") for _, at in Page(render_html(alone)).elements)
    assert "of a fleet" not in summary_markdown(alone)
