"""Whatever happens to the nodes of a fleet, each run is in the totals once or is reported as missing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.fleets import SOURCES, RayFailed, ScriptedRay, done, ended, fleet, part, report, store_in, units

from coldproof.harness.cli.main import main
from coldproof.harness.fleet import fleet as fleet_run
from coldproof.harness.fleet.fleet import time_left
from coldproof.harness.fleet.merge.results import fleet_results
from coldproof.harness.fleet.node import KNOWN_ISSUES, Ended
from coldproof.harness.fleet.store import EARLIER, UNITS, Store
from coldproof.harness.schema.results import Results, read_results
from coldproof.reports.files.own_folder import OwnFolder
from coldproof.reports.format.text import duration

ONE, TWO = units()
MATRIX = """[[machine]]
name = "cpu"
num_cpus = 2
resources = { lab = 0 }
[[run]]
engine = "llamacpp"
machines = ["cpu"]
cells = ["llamacpp", "llamacpp-one-slot"]
"""
Run = Callable[..., tuple[int, Results, ScriptedRay]]

pytestmark = pytest.mark.usefixtures("small_list")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs the fleet of both units on a Ray with prepared results."""
    (tmp_path / "matrix.toml").write_text(MATRIX)

    def runs(results: dict[str, Ended | Exception], *options: str, lost: tuple[str, ...] = ()) -> Any:
        ray = ScriptedRay(results)

        @contextlib.contextmanager
        def connected(*_: object, retries: int) -> Iterator[ScriptedRay]:
            yield ray

        def losing(*arguments: Any, **more: Any) -> Any:
            ray.lost.extend(lost)
            return ScriptedRay.wait(ray, *arguments, **more)

        monkeypatch.setattr(ray, "wait", losing)
        monkeypatch.setattr(fleet_run, "connected", connected)
        code = main(["fleet", str(tmp_path / "matrix.toml"), "--out", str(tmp_path / "out"), *options])
        return code, read_results(tmp_path / "out" / "results.json"), ray

    return runs


@pytest.fixture
def good(tmp_path: Path) -> dict[str, Ended | Exception]:
    """Return how both units end in a fleet without problems."""
    return {unit.id: ended(report(tmp_path / unit.id, unit)) for unit in (ONE, TWO)}


def test_a_run_that_was_lost_and_retried_is_counted_once(
    run: Run, good: dict[str, Ended | Exception], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report says how often it was lost."""
    good[ONE.id] = ended(tmp_path / ONE.id, lost=1, node="n2")
    code, results, ray = run(good, "--retries", "5")
    assert (code, results.complete, results.problem) == (0, True, "")
    assert (results.totals["examples"], results.totals["requests"]) == (31, 62)  # as in a run of both cells
    assert [(row.unit, row.state, row.node, row.lost) for row in results.fleet] == [
        (ONE.id, "done", "n2", 1),
        (TWO.id, "done", "n1", 0),
    ]
    assert f"{ONE.id}: exit code 0, {duration(60)} after 1 lost attempt; 1 of 2 done" in capsys.readouterr().out
    resources = {"num_cpus": 2.0, "num_gpus": 0.0, "resources": {"lab": 0.0}}
    assert ray.options == {unit.id: {**resources, "max_retries": 5} for unit in (ONE, TWO)}


@pytest.mark.parametrize(("code", "files"), [(1, True), (3, True), (3, False), (4, False), (5, False)])
def test_the_exit_code_of_a_run_is_kept(tmp_path: Path, code: int, files: bool) -> None:
    """A verdict is a result. A failure of the harness is a problem, with or without a report."""
    store, good = store_in(tmp_path / "out"), report(tmp_path / "one", ONE)
    record = store.keep(ONE.id, ONE.digest(SOURCES), ended(good if files else tmp_path / "nothing", code=code))
    assert (record.exit_code, bool(record.problem)) == (code, code != 1)
    assert store.record(ONE, SOURCES) == record


def test_a_run_without_a_report_gives_the_reason(tmp_path: Path) -> None:
    """The last line of pytest stands in the merged report, which is no pass."""
    store = store_in(tmp_path / "out")
    said = "start\ncoldproof: unknown engine 'x'\n"
    record = store.keep(ONE.id, ONE.digest(SOURCES), ended(tmp_path / "nothing", code=4, log=said))
    assert record.problem == "no report, exit code 4: coldproof: unknown engine 'x'"
    results = fleet_results(fleet(), [part(store, ONE)])
    assert results.problem == f"1 of 1 run failed or are missing: {ONE.id}: {record.problem}"
    assert (results.exit_code, results.complete, results.fleet[0].state) == (3, False, "failed")
    assert (tmp_path / "out" / UNITS / f"{ONE.id}.log").read_text() == said


def test_what_ray_could_not_run_is_missing_and_no_pass(run: Run, good: dict[str, Ended | Exception]) -> None:
    """It was lost more often than there are retries, or could not start. The others count, and the whole fails."""
    code, results, _ = run({**good, ONE.id: RayFailed("the node\nwent away")})
    assert (code, results.complete) == (3, False)
    assert f"{ONE.id}: RayFailed: the node went away" in results.problem
    assert {row.unit: row.state for row in results.fleet} == {ONE.id: "failed", TWO.id: "done"}
    assert {cell.cell for one in results.requirements for cell in one.cells} == {TWO.column("two")}


def test_a_failure_in_the_task_itself_is_named(run: Run, good: dict[str, Ended | Exception]) -> None:
    """Ray's exception has a traceback of the node, and the failure as its cause."""
    failed = RayFailed("a long traceback")
    failed.cause = OSError("no space left")  # type: ignore[attr-defined]
    _, results, _ = run({**good, ONE.id: failed})
    assert f"{ONE.id}: OSError: no space left" in results.problem


def test_what_is_lost_does_not_leave_an_earlier_runs_report_in_its_place(
    run: Run, good: dict[str, Ended | Exception], tmp_path: Path
) -> None:
    """A report of other sources does not apply to these."""
    done(store_in(tmp_path / "out"), ONE, digest="of other sources")
    _, results, _ = run({**good, ONE.id: RayFailed("gone")})
    assert [row.report for row in results.fleet] == ["", f"units/{TWO.id}"]


def test_an_earlier_report_that_somebody_changed_is_kept(tmp_path: Path) -> None:
    """It is moved aside, and so is a bundle."""
    store = store_in(tmp_path / "out")
    for _ in range(2):
        done(store, ONE)
        (store.report(ONE.id) / "mine.txt").write_text("mine")
        store.remove(ONE.id)
    assert not store.report(ONE.id).exists()
    assert store.record(ONE, SOURCES) is None
    kept = sorted(path.relative_to(tmp_path / "out").as_posix() for path in tmp_path.glob("out/*/*/mine.txt"))
    assert kept == [f"{EARLIER}/{ONE.id}.{number}/mine.txt" for number in (1, 2)]


def test_no_more_run_at_a_time_than_workers(run: Run, good: dict[str, Ended | Exception]) -> None:
    """The limit holds whatever room the cluster has."""
    assert run(good, "--workers", "1")[2].most == 1


def test_all_units_are_given_to_ray_at_once(run: Run, good: dict[str, Ended | Exception]) -> None:
    """Without a limit, Ray alone decides how many run at a time."""
    assert run(good)[2].most == 2


def test_a_lost_node_is_one_line(
    run: Run, good: dict[str, Ended | Exception], capsys: pytest.CaptureFixture[str]
) -> None:
    """A node that is lost for long is not named again."""
    run(good, lost=("abcdefabcdefabcdef",))
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("node ")]
    assert said == ["node abcdefabcdef was lost; Ray retries its runs on other nodes"]


def test_known_issues_are_sent_as_text(run: Run, good: dict[str, Ended | Exception], tmp_path: Path) -> None:
    """The file does not exist on a node. The report folder is named as the driver names it."""
    (tmp_path / KNOWN_ISSUES).write_text("# none\n")
    (tmp_path / "matrix.toml").write_text(f'{MATRIX}known_issues = "{KNOWN_ISSUES}"\n')
    _, _, ray = run(good)
    assert [arguments[1:] for arguments in ray.arguments.values()] == [
        ("# none\n", f"out/units/{unit.id}", "") for unit in (ONE, TWO)
    ]


def test_what_is_done_is_not_run_again_until_something_changes(tmp_path: Path) -> None:
    """It is run again after changed sources, another definition, a failure, or a missing folder."""
    store = store_in(tmp_path / "out")
    done(store, ONE)
    done(store, TWO, exit_code=3, problem="broke")
    assert store.is_done(ONE, SOURCES)
    assert not store.is_done(TWO, SOURCES)
    assert not store.is_done(ONE, "other sources")
    (store.report(ONE.id) / "results.json").unlink()
    assert not store.is_done(ONE, SOURCES)


@pytest.mark.parametrize(
    ("file", "why"),
    [("mine.txt", "has files that Coldproof did not write"), ("results.json", "has a report that is not a fleet's")],
)
def test_a_folder_with_something_else_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, why: str
) -> None:
    """It is refused in one line, also if it is the report of a single run."""
    (tmp_path / "matrix.toml").write_text(MATRIX)
    if file == "results.json":
        OwnFolder.begin(tmp_path / "out").close()
    (tmp_path / "out").mkdir(exist_ok=True)
    (tmp_path / "out" / file).write_text("{}")
    assert main(["fleet", str(tmp_path / "matrix.toml"), "--out", str(tmp_path / "out")]) == 4
    assert why in capsys.readouterr().err


def test_a_folder_is_one_drivers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second driver is refused in one line."""
    (tmp_path / "matrix.toml").write_text(MATRIX)
    held = OwnFolder.begin(tmp_path / "out")
    assert main(["fleet", str(tmp_path / "matrix.toml"), "--out", str(tmp_path / "out")]) == 4
    assert "another run is writing into this folder" in capsys.readouterr().err
    held.close()


def test_what_was_done_before_ctrl_c_is_kept_and_the_rest_is_named(
    run: Run, good: dict[str, Ended | Exception], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The running unit is cancelled, the report is written and is no pass, and the same command continues."""
    code, results, ray = run({ONE.id: good[ONE.id]})
    assert (code, set(ray.cancelled)) == (3, {TWO.id})
    assert "interrupted: finished runs are kept; the same command resumes" in capsys.readouterr().out
    assert (results.complete, [row.state for row in results.fleet]) == (False, ["done", "missing"])
    assert results.problem.startswith("the fleet was interrupted: 1 of 2 runs failed or are missing")
    code, results, ray = run({TWO.id: good[TWO.id]})
    assert (code, list(ray.arguments), results.complete) == (0, [TWO.id], True)


def test_a_driver_that_was_killed_leaves_a_unit_unfinished(tmp_path: Path) -> None:
    """A report without a record is one that was not stored completely."""
    store = store_in(tmp_path / "out")
    report(store.report(ONE.id), ONE)
    assert not Store(store.folder).is_done(ONE, SOURCES)


@pytest.mark.parametrize(("elapsed", "done", "units", "left"), [(30.0, 1, 3, 60), (90.0, 3, 4, 30), (9.0, 2, 2, None)])
def test_the_rest_takes_as_long_as_what_is_done(elapsed: float, done: int, units: int, left: int | None) -> None:
    """Runs beside each other count as they end."""
    assert time_left(elapsed, done, units) == ("" if left is None else f", about {duration(left)} left")
