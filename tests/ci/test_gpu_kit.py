"""The kit for a GPU machine without a network has parts, plans, deadlines, wheels and a limit on the size of its
results.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.paths import ROOT

KIT = ROOT / "ci" / "gpu_kit"
PLANS = sorted((ROOT / "ci" / "plans").glob("*.toml"))
MODULES = ("kit_inventory", "kit_pack", "kit_parts", "kit_plan", "kit_results", "kit_run", "kit_steps", "kit_wheels")


class Kit:
    """The modules of the kit by their short names."""

    def __init__(self) -> None:
        for name in MODULES:
            setattr(self, name.removeprefix("kit_"), importlib.import_module(name))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


@pytest.fixture
def kit(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kit]:
    """Yield the modules, which are no package: on the target they are in one archive."""
    monkeypatch.syspath_prepend(str(KIT))
    yield Kit()
    for name in MODULES:
        sys.modules.pop(name, None)


def written(path: Path, content: bytes) -> Path:
    """Write a file with this content and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """Return a file of 5,000 bytes that do not repeat within a part."""
    return written(tmp_path / "whole", b"".join(i.to_bytes(2) for i in range(2500)))


def test_parts_in_any_order_give_the_file_again(kit: Kit, whole: Path, tmp_path: Path) -> None:
    """No part is larger than the given size, and together they are the same bytes."""
    parts = kit.parts.cut(whole, tmp_path, size=1500)
    assert len(parts) == 6
    assert max(part.stat().st_size for part in parts) <= 1500
    kit.parts.join(parts[::-1], tmp_path / "joined")
    assert (tmp_path / "joined").read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("at", [-1, -500])
def test_a_part_that_was_changed_is_refused_and_leaves_nothing(kit: Kit, whole: Path, tmp_path: Path, at: int) -> None:
    """One changed byte is enough, and the file that was begun is removed."""
    parts = kit.parts.cut(whole, tmp_path, size=1500)
    content = bytearray(parts[2].read_bytes())
    content[at] ^= 1
    parts[2].write_bytes(content)
    with pytest.raises(kit.parts.PartsError, match=r"part03 was changed"):
        kit.parts.join(parts, tmp_path / "joined")
    assert not (tmp_path / "joined").exists()


def test_a_part_that_is_missing_cut_off_or_of_another_kit_is_refused(kit: Kit, whole: Path, tmp_path: Path) -> None:
    """Each refusal has its own reason."""
    parts = kit.parts.cut(whole, tmp_path, size=1500)
    with pytest.raises(kit.parts.PartsError, match="of 6 parts, these are missing: 2, 6"):
        kit.parts.join([parts[0], *parts[2:5]], tmp_path / "joined")
    (tmp_path / "other").mkdir()
    other = kit.parts.cut(written(tmp_path / "else", b"x" * 100), tmp_path / "other", size=1500)
    with pytest.raises(kit.parts.PartsError, match="parts of 2 kits"):
        kit.parts.join([*parts[:5], *other], tmp_path / "joined")
    with pytest.raises(kit.parts.PartsError, match="no part of a kit"):
        kit.parts.join([whole], tmp_path / "joined")
    parts[5].write_bytes(parts[5].read_bytes()[:-1])
    with pytest.raises(kit.parts.PartsError, match="part06 was changed"):
        kit.parts.join(parts, tmp_path / "joined")


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_every_plan_can_be_used(kit: Kit, path: Path) -> None:
    """Its files exist, its steps have unique names and known variables, and its results fit into the allowed number
    of files.
    """
    plan = kit.plan.read_plan(path)
    assert plan.steps
    assert [one for one in plan.pack.files if not (ROOT / one).is_file()] == []


STEP = {"name": "one", "run": ["x"], "seconds": 5}


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ({"step": [STEP]}, "no budget"),
        ({"budget": 9, "steps": []}, "unknown in a plan: steps"),
        ({"budget": 9, "step": [STEP, STEP]}, "two steps have the same name"),
        ({"budget": 9, "step": [{**STEP, "time": 3}]}, "step one: unknown time"),
        ({"budget": 9, "step": [{"name": "one", "run": ["x"]}]}, "step one: .*seconds"),
        ({"budget": 9, "step": [{**STEP, "after": ["two"]}]}, "after two, which"),
        ({"budget": 9, "step": [{**STEP, "run": ["{pyton}"]}]}, "unknown variable 'pyton'"),
        ({"budget": 9, "step": [{**STEP, "name": "../one"}]}, "no name for a file"),
        ({"budget": 9, "step": [{**STEP, "name": f"s{i}", "group": f"g{i}"} for i in range(8)]}, "at most 7 files"),
        ({"budget": 9, "pack": {"wheels": []}}, r"\[pack\]: unknown wheels"),
    ],
)
def test_a_plan_with_a_mistake_is_refused(kit: Kit, table: dict[str, Any], reason: str) -> None:
    """The plan is refused before anything is started."""
    with pytest.raises(kit.plan.PlanError, match=reason):
        kit.plan.plan_of(table)


class Scripted:
    """A process of a step on the clock of the test. It ends by itself at `ends`, or so many seconds after SIGTERM."""

    def __init__(self, clock: Clock, *, ends: float | None, code: int = 0, after_term: float | None = 0.0) -> None:
        self.clock, self.ends, self.code, self.after_term = clock, ends, code, after_term
        self.killed = 0

    def poll(self) -> int | None:
        """Return the exit code once the process has ended."""
        return self.code if self.ends is not None and self.clock.at >= self.ends else None

    def terminate(self) -> None:
        """End after a while, or not at all."""
        self.ends = None if self.after_term is None else self.clock.at + self.after_term

    def kill(self) -> None:
        """Count the calls."""
        self.killed += 1


class Clock:
    """A clock that only sleeping advances."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        """Return the time."""
        return self.at

    def sleep(self, seconds: float) -> None:
        """Advance the clock."""
        self.at += seconds


Made = dict[str, Callable[[Clock], Scripted]]


class Session:
    """A run of steps on its own clock, with scripted processes by the names of the steps."""

    def __init__(self, kit: Kit, made: Made, *, end: float = 100.0) -> None:
        self.clock, self.made = Clock(), made
        self.started: list[tuple[str, float]] = []
        self.processes: dict[str, Scripted] = {}
        self.lanes = kit.steps.Lanes(
            now=self.clock.now,
            sleep=self.clock.sleep,
            start=self.start,
            ended=lambda *_: None,
            say=lambda _: None,
            began=0.0,
            end=end,
        )

    def start(self, step: Any, _seconds: float) -> Scripted:
        """Start a scripted process, or fail as its script does."""
        process = self.made[step.name](self.clock)
        self.started.append((step.name, self.clock.at))
        self.processes[step.name] = process
        return process

    def run(self, *steps: Any) -> dict[str, str]:
        """Run steps and return their states."""
        self.lanes.run(steps)
        return {name: result.state.value for name, result in self.lanes.results.items()}


def step(kit: Kit, name: str, *, lane: str = "main", seconds: float = 10.0, **more: Any) -> Any:
    """Return a step."""
    return kit.plan.Step(name=name, run=("x",), seconds=seconds, lane=lane, **more)


def ends(at: float, code: int = 0) -> Callable[[Clock], Scripted]:
    """Return a function that makes a process which ends by itself after so many seconds."""
    return lambda clock: Scripted(clock, ends=clock.at + at, code=code)


def test_a_step_that_fails_hangs_or_is_late_costs_only_itself(kit: Kit) -> None:
    """The next step of its lane starts when it has ended, and its remaining processes are killed."""
    made: Made = {
        "fails": ends(1, code=7),
        "late": lambda clock: Scripted(clock, ends=None, after_term=2.0),
        "hung": lambda clock: Scripted(clock, ends=None, after_term=None),
        "fine": ends(3),
    }
    session = Session(kit, made)
    found = session.run(*(step(kit, name) for name in made))
    assert found == {"fails": "failed", "late": "late", "hung": "hung", "fine": "done"}
    assert session.started == [("fails", 0.0), ("late", 1.0), ("hung", 13.0), ("fine", 13.0 + 10.0 + kit.steps.GRACE)]
    assert all(process.killed for process in session.processes.values())
    assert session.lanes.results["fails"].exit_code == 7


def test_a_step_that_cannot_be_started_costs_only_itself(kit: Kit) -> None:
    """Its reason is recorded, and the lane goes on at once."""

    def broken(_: Clock) -> Scripted:
        raise FileNotFoundError("no such program")

    session = Session(kit, {"broken": broken, "fine": ends(1)})
    assert session.run(step(kit, "broken"), step(kit, "fine")) == {"broken": "failed", "fine": "done"}
    assert "no such program" in session.lanes.results["broken"].reason


def test_lanes_run_side_by_side_and_a_step_waits_for_what_it_follows(kit: Kit) -> None:
    """A waiting step holds only its own lane, and an expected exit code other than 0 counts as success."""
    made: Made = {"a": ends(5, code=1), "b": ends(2), "c": ends(1), "d": ends(1)}
    session = Session(kit, made)
    steps = (
        step(kit, "a", lane="one", expect=(0, 1)),
        step(kit, "b", lane="two"),
        step(kit, "c", lane="two", after=("a", "not in this run")),
        step(kit, "d", lane="three"),
    )
    assert set(session.run(*steps).values()) == {"done"}
    assert session.started == [("a", 0.0), ("b", 0.0), ("d", 0.0), ("c", 5.0)]


def test_the_budget_shortens_steps_and_skips_those_that_find_no_time(kit: Kit) -> None:
    """The whole run, including packing, ends within the budget."""
    made: Made = {"long": lambda clock: Scripted(clock, ends=None, after_term=None), "after": ends(1)}
    session = Session(kit, made, end=40.0)
    assert session.run(step(kit, "long", seconds=500), step(kit, "after")) == {"long": "hung", "after": "skipped"}
    assert session.clock.at <= 40.0
    assert session.lanes.results["after"].reason == "no time left"


def test_an_interrupt_ends_what_runs_and_skips_the_rest(kit: Kit) -> None:
    """Every step has a result."""
    session = Session(kit, {"one": lambda clock: Scripted(clock, ends=None, after_term=1.0), "two": ends(1)})
    ticks = iter(range(3))

    def sleep(seconds: float) -> None:
        session.clock.at += seconds
        if next(ticks, None) == 2:
            raise KeyboardInterrupt

    session.lanes.sleep = sleep
    assert session.run(step(kit, "one"), step(kit, "two")) == {"one": "late", "two": "skipped"}


def test_a_process_that_ignores_the_signal_is_killed_with_what_it_started(kit: Kit, tmp_path: Path) -> None:
    """A pipe that both hold open ends when the last of them has ended."""
    script = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"], pass_fds=[%d])
os.write(%d, b"x")
time.sleep(600)
"""
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    environment = {**os.environ}
    process = None
    try:
        words = [sys.executable, "-c", script % (writer, writer)]
        original = subprocess.Popen
        process = kit.steps.StepProcess.__new__(kit.steps.StepProcess)
        process.process = original(
            words, cwd=tmp_path, env=environment, pass_fds=[writer], start_new_session=True, stdout=subprocess.DEVNULL
        )
        os.close(writer)
        assert os.read(reader, 1) == b"x"
        process.terminate()
        assert process.poll() is None
        process.kill()
        assert os.read(reader, 1) == b""
    finally:
        os.close(reader)
        if process is not None:
            process.kill()


def filled(folder: Path, kit: Kit, files: dict[str, int]) -> list[Any]:
    """Return the kept files of a step that wrote files with so many incompressible bytes."""
    for name, size in files.items():
        written(folder / name, os.urandom(size))
    return list(kit.results.kept_files(folder, step(kit, "one", keep=("more/*.bin",))))


def names_in(archive: Path) -> set[str]:
    """Return the names in an archive."""
    with tarfile.open(archive) as tar:
        return set(tar.getnames())


def test_only_chosen_files_come_back(kit: Kit, tmp_path: Path) -> None:
    """Reports, cases and named files come back, without the event log and without files of other steps."""
    files = ["output.log", "report/results.json", "report/events.ndjson", "report/cases/A.py", "more/x.bin", "y.bin"]
    kept = filled(tmp_path, kit, dict.fromkeys(files, 10))
    assert {one.name for one in kept} == {f"one/{name}" for name in files} - {"one/report/events.ndjson", "one/y.bin"}


def test_the_end_of_a_log_comes_back(kit: Kit, tmp_path: Path) -> None:
    """These are its last bytes, up to the limit."""
    log = written(tmp_path / "output.log", b"begin" + b"." * kit.results.LOG_BYTES + b"end")
    (kept,) = kit.results.kept_files(tmp_path, step(kit, "one"))
    assert kept.content() == log.read_bytes()[-kit.results.LOG_BYTES :]


def test_a_group_that_is_too_large_gives_up_its_least_important_files(kit: Kit, tmp_path: Path) -> None:
    """The results stay, the archive fits, and the files that were left out are named."""
    files = {"report/results.json": 2000, "report/index.html": 2000, "more/big.bin": 50_000, "more/small.bin": 500}
    kept = filled(tmp_path / "step", kit, files)
    left_out = kit.results.pack_group(kept, tmp_path / "group.tar.xz", most=6000)
    assert left_out == ["one/more/big.bin"]
    assert (tmp_path / "group.tar.xz").stat().st_size <= 6000
    assert names_in(tmp_path / "group.tar.xz") == {f"one/{name}" for name in files} - set(left_out)
    assert [one.name for one in tmp_path.iterdir() if one.is_file()] == ["group.tar.xz"]


def wheel(folder: Path, name: str, version: str, requires: tuple[str, ...] = (), **files: bytes) -> Path:
    """Write a wheel with these requirements and files and return its path."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    metadata = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {one}" for one in requires)]
    contents = {f"{name}/{file}": content for file, content in files.items()}
    record = "".join(f"{file},sha256=x,{len(content)}\n" for file, content in contents.items())
    with zipfile.ZipFile(path, "w") as archive:
        for file, content in contents.items():
            archive.writestr(file, content)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\n" + "\n".join(metadata) + "\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", record + f"{info}/RECORD,,\n")
    return path


def brought(kit: Kit, tmp_path: Path, target: Any, requires: tuple[str, ...], **more: Any) -> list[str]:
    """Return the requirements that are fetched for a target, from wheels made here."""
    index = {
        "engine": wheel(tmp_path, "engine", "2.0", ("small>=1", "there>=3", "heavy", 'other; sys_platform == "win32"')),
        "small": wheel(tmp_path, "small", "1.5", ('deep; extra == "x"',)),
        "there": wheel(tmp_path, "there", "3.0"),
        "deep": wheel(tmp_path, "deep", "1.0"),
    }
    own = wheel(tmp_path, "coldproof", "0.1", ("small[x]",))
    fetched: list[str] = []

    def fetch(requirement: str, _folder: Path) -> Path:
        fetched.append(requirement)
        return index[requirement.partition("=")[0].partition(">")[0]]

    more = {"skip": ("heavy",), "follow": True, **more}
    kit.wheels.collect(own, requires, target=target, folder=tmp_path, fetch=fetch, say=lambda _: None, **more)
    return sorted(fetched)


def test_what_the_target_lacks_is_brought_and_nothing_else(kit: Kit, tmp_path: Path) -> None:
    """The versions fit, the packages are for its system, extras that are requested later are included, and skipped
    packages are not.
    """
    old, new = (kit.wheels.Target(packages={"there": version}) for version in ("2.9", "3.1"))
    unknown = kit.wheels.Target(packages={"there": None, "small": None})
    assert brought(kit, tmp_path, old, ("engine==2.0",)) == ["deep", "engine==2.0", "small", "there>=3"]
    assert brought(kit, tmp_path, new, ("engine==2.0",)) == ["deep", "engine==2.0", "small"]
    assert brought(kit, tmp_path, unknown, ("engine==2.0",)) == ["engine==2.0"]
    assert brought(kit, tmp_path, old, ("engine==2.0",), follow=False) == ["deep", "engine==2.0", "small"]


def test_files_that_a_plan_drops_are_gone_from_the_wheel_and_its_record(kit: Kit, tmp_path: Path) -> None:
    """The rest is the same, and a pattern that matches nothing is refused: it would leave the size unexplained."""
    path = wheel(tmp_path, "engine", "2.0", **{"big.so": b"x" * 100, "small.py": b"1"})
    (tmp_path / "slim").mkdir()
    target = tmp_path / "slim" / path.name
    assert kit.wheels.slim(path, ("engine/*.so",), target) == ["engine/big.so"]
    with zipfile.ZipFile(target) as archive:
        assert archive.read("engine/small.py") == b"1"
        assert "big.so" not in archive.read("engine-2.0.dist-info/RECORD").decode()
        assert "engine/big.so" not in archive.namelist()
    with pytest.raises(kit.wheels.WheelsError, match=r"has no engine/\*\.dll"):
        kit.wheels.slim(path, ("engine/*.dll",), target)


def test_the_inventory_is_what_a_target_is_made_from(kit: Kit) -> None:
    """It has the packages of this environment with their versions."""
    found = json.loads(json.dumps(kit.inventory.inventory()))
    target = kit.wheels.target_of(found)
    assert target.packages["pytest"] == pytest.__version__
    assert target.short == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert kit.wheels.target_of({"libc": "2.31"}).platforms()[0] == "manylinux_2_31_x86_64"


def packed(kit: Kit, tmp_path: Path, plan: str) -> tuple[Path, list[Path]]:
    """Return the driver and the parts of a kit with one wheel and this plan, as `pack` writes them."""
    folder = tmp_path / "kit"
    for name in ("wheels", "models", "files", "cache"):
        (folder / name).mkdir(parents=True)
    wheel(folder / "wheels", "onlyhere", "1.0", **{"__init__.py": b"VALUE = 42\n"})
    written(folder / "plan.toml", plan.encode())
    whole = tmp_path / "kit.tar.xz"
    with tarfile.open(whole, "w:xz") as tar:
        tar.add(folder, ".")
    order = kit.pack.Order(
        out=tmp_path / "out",
        engine="x",
        plan=None,
        target=kit.wheels.Target(),
        lacks=None,
        near=(),
        part_bytes=700,
        preset=0,
    )
    *parts, driver = kit.pack.finish(order, whole)
    return driver, parts


PLAN = """
budget = 300
[[step]]
name = "imports"
seconds = 100
run = ["{python}", "-c", "import onlyhere, pathlib; pathlib.Path('found.json').write_text(str(onlyhere.VALUE))"]
[[step]]
name = "fails"
group = "bad"
seconds = 100
run = ["{python}", "-c", "print('why'); raise SystemExit(7)"]
[[step]]
name = "elsewhere"
seconds = 100
devices = ["cuda"]
run = ["{python}", "-c", ""]
"""


def test_a_kit_is_put_together_installed_run_and_packed(kit: Kit, tmp_path: Path) -> None:
    """Its driver alone does this, from parts, with a wheel that only the kit has. The results say what each step
    did.
    """
    driver, parts = packed(kit, tmp_path, PLAN)
    assert len(parts) > 1
    words = [sys.executable, str(driver), "run", *map(str, parts), "--out", str(tmp_path / "back")]
    words += ["--work", str(tmp_path / "work"), "--device", "cpu"]
    ended = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ended.returncode == 1, ended.stderr
    back = tmp_path / "back"
    assert {one.name for one in back.iterdir()} == {"kit.json", "results.tar.xz", "bad.tar.xz"}
    facts = json.loads((back / "kit.json").read_text())
    assert {one["name"]: (one["state"], one["exit_code"]) for one in facts["steps"]} == {
        "imports": ("done", 0),
        "fails": ("failed", 7),
    }
    with tarfile.open(back / "results.tar.xz") as tar:
        assert tar.extractfile("imports/found.json").read() == b"42"  # type: ignore[union-attr]
    with tarfile.open(back / "bad.tar.xz") as tar:
        assert tar.extractfile("fails/output.log").read() == b"why\n"  # type: ignore[union-attr]


def test_a_changed_part_is_not_installed(kit: Kit, tmp_path: Path) -> None:
    """The driver ends with the exit code for an unusable kit, and gives the reason."""
    driver, parts = packed(kit, tmp_path, PLAN)
    parts[0].write_bytes(parts[0].read_bytes()[:-1] + b"?")
    words = [sys.executable, str(driver), "run", *map(str, parts), "--out", str(tmp_path / "back")]
    ended = subprocess.run(
        [*words, "--work", str(tmp_path / "work")], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert ended.returncode == 3
    assert "part01 was changed" in ended.stderr
    assert not (tmp_path / "work" / "site").exists()


def test_a_wrong_call_has_the_exit_code_of_usage(tmp_path: Path) -> None:
    """This includes an invalid size."""
    words = [sys.executable, str(KIT), "pack", str(tmp_path), "--engine", "transformers", "--part-size", "many"]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 4
    assert "use for example 45M" in ended.stderr


def test_an_archive_holds_the_bytes_of_its_files(kit: Kit, tmp_path: Path) -> None:
    """The bytes are found by name."""
    one = kit.results.Kept("step/x.json", written(tmp_path / "x.json", b"{}"), 0)
    with tarfile.open(fileobj=io.BytesIO(kit.results.archive([one]))) as tar:
        assert tar.extractfile("step/x.json").read() == b"{}"  # type: ignore[union-attr]


def test_the_bound_of_a_rate_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a flagged answer the bound has a closed form, and with some it is the rate at which so few have 5 %."""
    monkeypatch.syspath_prepend(str(ROOT / "ci" / "plans"))
    measures = importlib.import_module("transformers_measures")
    assert measures.bound(0, 20_000)["rate_at_most"] == pytest.approx(1 - 0.05 ** (1 / 20_000))
    assert measures.tail(3, 1000, measures.bound(3, 1000)["rate_at_most"]) == pytest.approx(0.05)


def test_false_positives_are_added_up_over_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted measurement counts with what it has."""
    monkeypatch.syspath_prepend(str(ROOT / "ci" / "plans"))
    measures = importlib.import_module("transformers_measures")
    answer = {"excess": 0.2, "hit": True, "parted": False, "accused": False}
    for name, rows in (("noise-float16-1", [answer] * 3), ("noise-float16-2", [answer, {**answer, "accused": True}])):
        stored = {"rows": rows, "band": None, "rule": "by scores", "seconds": 1.0, "none": ""}
        written(tmp_path / name / "noise" / "clean" / "level.json", json.dumps(stored).encode())
    found = measures.noise(tmp_path)
    assert (found["all"]["answers"], found["all"]["flagged"]) == (5, 1)
    assert found["kinds"]["float16"] == found["all"]
    assert [row["answers"] for row in found["rows"]] == [3, 2]
