"""A fleet on a real Ray survives a killed worker and a lost node, and its report is complete and has no duplicates."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.fleets import GO, at_gate, fake_python
from support.waiting import until

from coldproof.harness.cli.main import main
from coldproof.harness.fleet.store import UNITS
from coldproof.harness.release.run.manifest import manifest_differences, read_manifest

ray = pytest.importorskip("ray")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a folder with a matrix of four quick runs, which wait at a gate until they may end."""
    (tmp_path / "gate").mkdir()
    (tmp_path / "matrix.toml").write_text(
        '[[machine]]\nname = "cpu"\n[[run]]\nengine = "llamacpp"\nmachines = ["cpu"]\nseeds = [1, 2]\n'
        f'cells = ["llamacpp", "llamacpp-one-slot"]\npython = "{fake_python(tmp_path)}"\n'
    )
    return tmp_path


def waiting(place: Path, count: int) -> list[psutil.Process]:
    """Return so many runs that have written all events except their end."""
    until(lambda: len(at_gate(place)) >= count)
    return at_gate(place)


def ray_worker(run: psutil.Process) -> psutil.Process:
    """Return the Ray process in which the task of a run is, which is an ancestor of the run and its guard."""
    return next(above for above in run.parents()[1:] if "ray" in above.name())


@contextmanager
def in_the_middle(place: Path, count: int, act: Callable[[list[psutil.Process]], None]) -> Iterator[None]:
    """Do something as soon as so many runs wait, and then let all of them continue."""

    def acts() -> None:
        try:
            act(waiting(place, count))
        finally:
            (place / "gate" / GO).write_text("")

    with ThreadPoolExecutor() as pool:
        acting = pool.submit(acts)
        yield
    acting.result()


def check_whole(out: Path, *, lost: int) -> None:
    """Check that there are four runs, each once, whatever was lost."""
    results = json.loads((out / "results.json").read_text())
    one, two = ({"examples": n, "requests": m} for n, m in ((15, 30), (16, 32)))
    assert (results["complete"], results["problem"]) == (True, "")
    assert results["totals"]["examples"] == 2 * (one["examples"] + two["examples"])
    assert results["totals"]["requests"] == 2 * (one["requests"] + two["requests"])
    assert [row["state"] for row in results["fleet"]] == ["done"] * 4
    assert sum(row["lost"] for row in results["fleet"]) == lost
    for run in (path for path in (out / UNITS).iterdir() if path.is_dir()):
        assert list(manifest_differences(run, read_manifest(run))) == []  # as its node wrote it, to the byte


@pytest.mark.nightly
def test_a_worker_killed_in_the_middle_costs_nothing_but_time(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its run ends with it and is tried again. A second start of the fleet has nothing to do."""
    monkeypatch.chdir(place)
    killed: list[psutil.Process] = []

    def kill(runs: list[psutil.Process]) -> None:
        killed.append(runs[0])
        ray_worker(runs[0]).kill()

    arguments = ["fleet", str(place / "matrix.toml"), "--out", "out", "--workers", "2"]
    with in_the_middle(place, 2, kill):
        assert main(arguments) == 0
    check_whole(place / "out", lost=1)
    assert "after 1 lost attempt" in capsys.readouterr().out
    assert has_ended(killed[0])
    os.utime(place / "out" / "results.json", (0, 0))
    assert main(arguments) == 0
    assert "4 runs, 4 of them finished before" in capsys.readouterr().out
    assert (place / "out" / "results.json").stat().st_mtime > 0
    check_whole(place / "out", lost=1)


def has_ended(process: psutil.Process) -> bool:
    """Return whether a process has ended. Its parent may not have waited for it yet."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.mark.nightly
def test_sigterm_ends_the_runs_and_leaves_a_report(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No run continues that nobody waits for, its folder is removed, and the report names what is missing."""
    monkeypatch.chdir(place)
    runs: list[tuple[psutil.Process, Path]] = []
    before = signal.getsignal(signal.SIGTERM)

    def end(running: list[psutil.Process]) -> None:
        runs.extend((run, Path(run.cwd())) for run in running)
        os.kill(os.getpid(), signal.SIGTERM)
        until(lambda: all(has_ended(run) for run in running))  # before the gate opens

    with in_the_middle(place, 1, end):
        assert main(["fleet", str(place / "matrix.toml"), "--out", "out", "--workers", "1"]) == 3
    assert "interrupted: finished runs are kept; the same command resumes" in capsys.readouterr().out
    results = json.loads((place / "out" / "results.json").read_text())
    assert results["problem"].startswith("the fleet was interrupted: 4 of 4 runs failed or are missing")
    assert [row["state"] for row in results["fleet"]] == ["missing"] * 4
    assert [folder for _, folder in runs if folder.exists()] == []
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.fixture
def cluster() -> Iterator[Any]:
    """Yield a cluster of a head, which runs nothing, and two nodes with a CPU each.

    Each node has its own folder for the files that Ray sends. In the usual one, the copy of the second node would
    replace the first one under its running tasks.
    """
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for name in ("brought-1", "brought-2"):
        made.add_node(num_cpus=1, object_store_memory=80 * 2**20, runtime_env_dir_name=name)
    yield made
    made.shutdown()


@pytest.mark.nightly
def test_a_node_lost_in_the_middle_costs_nothing_but_time(
    place: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its runs go to the remaining nodes. These nodes have only what Ray sent them."""
    monkeypatch.chdir(place)

    def lose(runs: list[psutil.Process]) -> None:
        """Remove a node. Its workers outlive it for a moment, in which a run that may continue could still end."""
        cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
        until(lambda: sum(not has_ended(run) for run in runs) == 1)
        until(lambda: not all(node["Alive"] for node in ray.nodes()))  # Ray has noticed it too

    with in_the_middle(place, 2, lose):
        assert main(["fleet", str(place / "matrix.toml"), "--out", "out", "--address", cluster.address]) == 0
    check_whole(place / "out", lost=1)
    said = capsys.readouterr().out
    assert len([line for line in said.splitlines() if line.startswith("node ") and "was lost" in line]) == 1
    assert "after 1 lost attempt" in said


def test_a_machine_that_no_node_has_is_refused_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It does not wait for a machine that nobody is going to start, nor for a Ray that is not there."""
    path = tmp_path / "matrix.toml"
    path.write_text(
        '[[machine]]\nname = "gpu"\nnum_gpus = 64\naccelerator_type = "X1"\n'
        '[[run]]\nengine = "llamacpp"\nmachines = ["gpu"]\n'
    )
    assert main(["fleet", str(path), "--out", str(tmp_path / "out")]) == 4
    said = capsys.readouterr().err
    assert "no node has the resources of machine 'gpu' (CPU 1, GPU 64, accelerator_type:X1 0.001)" in said
    assert main(["fleet", str(path), "--out", str(tmp_path / "out"), "--address", "127.0.0.1:1"]) == 4
    assert "no Ray at --address 127.0.0.1:1" in capsys.readouterr().err


def test_without_ray_a_fleet_names_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message is one line."""
    monkeypatch.setitem(sys.modules, "ray", None)
    path = tmp_path / "matrix.toml"
    path.write_text('[[machine]]\nname = "cpu"\n[[run]]\nengine = "llamacpp"\nmachines = ["cpu"]\n')
    assert main(["fleet", str(path), "--out", str(tmp_path / "out")]) == 4
    assert "coldproof fleet needs Ray: pip install" in capsys.readouterr().err
