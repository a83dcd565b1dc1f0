"""Whatever happens to the nodes of a fleet, each run is in the totals once or is reported as missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fleets import SOURCES, ScriptedNodes, archive, done, fleet, node_messages, order, part, report, units

from coldproof.harness.cli.main import main
from coldproof.harness.fleet import fleet as fleet_run
from coldproof.harness.fleet.cluster import NodeLost, TaskFailed
from coldproof.harness.fleet.matrix import Unit
from coldproof.harness.fleet.merge.results import fleet_results
from coldproof.harness.fleet.node import Message, RunEnded, RunStarted
from coldproof.harness.fleet.scheduler import Driver
from coldproof.harness.fleet.store import LOST, RUNNING, UNITS, Record, Store
from coldproof.harness.options import UsageError
from coldproof.harness.schema.results import Results, read_results

ONE, TWO = units()


pytestmark = pytest.mark.usefixtures("small_list")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return the empty folder of a fleet."""
    return Store(tmp_path / "out")


def driven(
    store: Store,
    nodes: ScriptedNodes,
    *,
    retries: int = 2,
    workers: int | None = None,
    only: tuple[Unit, ...] = (ONE, TWO),
) -> tuple[list[Record], list[str]]:
    """Return the record of each unit, and the lines that were reported meanwhile."""
    lines: list[str] = []
    driver = Driver(
        nodes=nodes,
        store=store,
        order=order,
        digest=lambda unit: unit.digest(SOURCES),
        tell=lines.append,
        workers=workers,
        retries=retries,
    )
    return driver.drive(only), lines


def whole(store: Store, only: tuple[Unit, ...] = (ONE, TWO)) -> Results:
    """Return the merged report."""
    return fleet_results(fleet(), [part(store, unit) for unit in only])


def test_a_lost_run_is_tried_again_and_counted_once(store: Store, tmp_path: Path) -> None:
    """Its first attempt had sent all events except the end, and these are kept aside."""
    good = [report(tmp_path / unit.id, unit) for unit in (ONE, TWO)]
    lost = [*node_messages(good[0])[:2], NodeLost("WorkerCrashedError: gone")]
    found, lines = driven(
        store, ScriptedNodes({ONE.id: [lost, node_messages(good[0], node="n2")], TWO.id: [node_messages(good[1])]})
    )
    assert {record.unit: record.lost for record in found} == {ONE.id: ["WorkerCrashedError: gone"], TWO.id: []}
    assert f"{ONE.id}: lost (WorkerCrashedError: gone); retrying (retry 1 of 2)" in lines
    assert (store.folder / LOST / f"{ONE.id}.1" / "events.ndjson").stat().st_size > 0
    assert list((store.folder / RUNNING).iterdir()) == []
    results = whole(store)
    assert (results.totals["examples"], results.totals["requests"]) == (31, 62)  # as in a run of both cells
    assert (results.complete, results.exit_code, results.problem) == (True, 0, "")
    assert [(row.unit, row.state, row.node, len(row.lost)) for row in results.fleet] == [
        (ONE.id, "done", "n2", 1),
        (TWO.id, "done", "n1", 0),
    ]


@pytest.mark.parametrize(("code", "files"), [(1, True), (3, True), (3, False), (4, False), (5, False)])
def test_a_run_that_ended_is_never_tried_again(store: Store, tmp_path: Path, code: int, files: bool) -> None:
    """Neither a verdict nor a failure of the harness is tried again, with or without a report."""
    good = report(tmp_path / "one", ONE)
    nodes = ScriptedNodes({ONE.id: [node_messages(good, code=code, files=files)]})
    found, _ = driven(store, nodes, only=(ONE,))
    assert nodes.started == [ONE.id]
    assert [(record.exit_code, bool(record.problem)) for record in found] == [(code, code != 1)]


@pytest.mark.parametrize("last", [NodeLost("NodeDiedError: gone"), TaskFailed("its task ended without a word")])
def test_a_task_that_fails_after_its_run_changes_nothing(
    store: Store, tmp_path: Path, last: NodeLost | TaskFailed
) -> None:
    """A node may be lost just after the end of a run arrived: the run is done, once, and the others continue."""
    good = [report(tmp_path / unit.id, unit) for unit in (ONE, TWO)]
    nodes = ScriptedNodes({ONE.id: [[*node_messages(good[0]), last]], TWO.id: [[*node_messages(good[1]), last]]})
    found, _ = driven(store, nodes, workers=1)
    assert nodes.started == [ONE.id, TWO.id]
    assert [(record.exit_code, record.lost, record.problem) for record in found] == [(0, [], "")] * 2
    assert whole(store).complete


def test_a_run_without_a_report_gives_the_reason(store: Store) -> None:
    """The last line of pytest stands in the merged report, which is no pass."""
    ended = RunEnded(4, archive(Path("nowhere")), "start\ncoldproof: unknown engine 'x'\n")
    found, _ = driven(store, ScriptedNodes({ONE.id: [[RunStarted("n"), ended]]}), only=(ONE,))
    assert found[0].problem == "no report, exit code 4: coldproof: unknown engine 'x'"
    results = whole(store, (ONE,))
    assert results.problem == f"1 of 1 run failed or are missing: {ONE.id}: {found[0].problem}"
    assert (results.exit_code, results.complete, results.fleet[0].state) == (3, False, "failed")


@pytest.mark.parametrize("last", [NodeLost("NodeDiedError: gone"), TaskFailed("RuntimeEnvSetupError: no such package")])
def test_what_never_ran_is_missing_and_no_pass(store: Store, tmp_path: Path, last: NodeLost | TaskFailed) -> None:
    """It was lost more often than there are retries, or could not start. The others count, and the whole fails."""
    scripts = [[RunStarted("n"), last], [last]] if isinstance(last, NodeLost) else [[last]]
    good = report(tmp_path / "two", TWO)
    nodes = ScriptedNodes({ONE.id: scripts, TWO.id: [node_messages(good)]})
    found, _ = driven(store, nodes, retries=1)
    assert nodes.started.count(ONE.id) == len(scripts)
    assert last.reason in next(record.problem for record in found if record.unit == ONE.id)
    results = whole(store)
    assert (results.exit_code, results.complete) == (3, False)
    assert ONE.id in results.problem
    assert {row.unit: row.state for row in results.fleet} == {ONE.id: "failed", TWO.id: "done"}
    assert {cell.cell for one in results.requirements for cell in one.cells} == {TWO.column("two")}


def test_what_is_lost_does_not_leave_an_earlier_runs_report_in_its_place(store: Store) -> None:
    """A report of other sources does not apply to these."""
    done(store, ONE, digest="of other sources")
    driven(store, ScriptedNodes({ONE.id: [[NodeLost("gone")]]}), retries=0, only=(ONE,))
    results = whole(store, (ONE,))
    assert (results.requirements, results.exit_code, results.fleet[0].report) == ([], 3, "")


def test_no_more_run_at_a_time_than_workers(store: Store, tmp_path: Path) -> None:
    """The limit holds whatever room the cluster has."""
    scripts = {unit.id: [node_messages(report(tmp_path / unit.id, unit))] for unit in (ONE, TWO)}
    nodes = ScriptedNodes(dict(scripts))
    driven(store, nodes, workers=1)
    assert nodes.most == 1
    assert nodes.started == [ONE.id, TWO.id]


def test_what_is_done_is_not_run_again_until_something_changes(store: Store) -> None:
    """It is run again after changed sources, another definition, a failure, or a missing folder."""
    done(store, ONE)
    done(store, TWO, exit_code=3, problem="broke")
    assert store.is_done(ONE, SOURCES)
    assert not store.is_done(TWO, SOURCES)
    assert not store.is_done(ONE, "other sources")
    (store.report(ONE.id) / "results.json").unlink()
    assert not store.is_done(ONE, SOURCES)


def test_a_try_that_a_killed_driver_left_is_put_aside(store: Store) -> None:
    """Its events are never taken for those of another attempt."""
    store.begin(ONE.id)
    store.add(ONE.id, b'{"event":"example"}\n')
    store.close()
    again = Store(store.folder)
    assert (store.folder / LOST / f"{ONE.id}.1" / "events.ndjson").is_file()
    again.begin(ONE.id)
    assert list((store.folder / RUNNING / ONE.id).iterdir()) == []


def test_a_folder_is_one_drivers_and_a_fleets(store: Store, tmp_path: Path) -> None:
    """A second driver, and a folder that holds something else, are refused in one line."""
    with pytest.raises(UsageError, match="another fleet is running"):
        Store(store.folder)
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "file").write_text("mine")
    with pytest.raises(UsageError, match="is not a fleet's"):
        Store(tmp_path / "else")


def test_progress_says_how_far_all_is_and_how_long_it_will_take(store: Store, tmp_path: Path) -> None:
    """The line comes after each run that ended."""
    scripts = {unit.id: [node_messages(report(tmp_path / unit.id, unit))] for unit in (ONE, TWO)}
    _, lines = driven(store, ScriptedNodes(scripts), workers=1)
    assert [line.partition(";")[0] for line in lines if line.endswith("waiting") or " left" in line] == [
        "1 done, 0 running, 1 waiting",
        "2 done, 0 running, 0 waiting",
    ]


def test_lines_are_on_the_disk_as_soon_as_they_came(store: Store) -> None:
    """A driver that is killed has lost nothing that arrived before."""
    store.begin(ONE.id)
    store.add(ONE.id, b"one\n")
    store.add(ONE.id, b"two\n")
    assert (store.folder / RUNNING / ONE.id / "events.ndjson").read_bytes() == b"one\ntwo\n"
    assert not (store.folder / UNITS / ONE.id).exists()


def test_what_was_done_before_ctrl_c_is_kept_and_the_rest_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report is written and is no pass, and the same command continues from there."""
    good = report(tmp_path / "good", ONE)

    class Interrupted(ScriptedNodes):
        local = True

        def messages(self, seconds: float) -> list[tuple[str, Message | NodeLost | TaskFailed]]:
            if not any(self.running.values()):
                raise KeyboardInterrupt
            return super().messages(seconds)

        def lacking(self, machines: object) -> list[str]:
            return []

        def close(self) -> None:
            """Do nothing, as there is nothing to release."""

    nodes = Interrupted({ONE.id: [node_messages(good)], TWO.id: [[]]})
    monkeypatch.setattr(fleet_run, "Cluster", lambda *_, **__: nodes)
    path = tmp_path / "matrix.toml"
    path.write_text(
        '[[machine]]\nname = "cpu"\n[[run]]\nengine = "llamacpp"\nmachines = ["cpu"]\n'
        'cells = ["llamacpp", "llamacpp-one-slot"]\n'
    )
    arguments = ["fleet", str(path), "--out", str(tmp_path / "fleet"), "--workers", "1"]
    assert main(arguments) == 3
    said = capsys.readouterr().out
    assert "interrupted: ending the running units\nfinished runs are kept" in said
    results = read_results(tmp_path / "fleet" / "results.json")
    assert (results.complete, [row.state for row in results.fleet]) == (False, ["done", "missing"])
    assert results.problem.startswith("the fleet was interrupted: 1 of 2 runs failed or are missing")
    nodes.scripts = {TWO.id: [node_messages(report(tmp_path / "two", TWO))]}
    nodes.running, nodes.started = {}, []
    monkeypatch.setattr(Interrupted, "messages", ScriptedNodes.messages)
    assert main(arguments) == 0
    assert nodes.started == [TWO.id]
    assert read_results(tmp_path / "fleet" / "results.json").complete
