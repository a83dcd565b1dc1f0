"""Runs the profile `ci` with each bug that is planted again: the requirements that the list names, in all of its cells.

Which cells are needed is not said, and most of the time goes into others. MIXED-2 runs with them, which is about
features that meet: in each run of the profile, its crossed cells have a fourth of the time. `coldproof power --wide ci`
runs all requirements, for hours.

All other known causes of the release are repaired, so that the engine has this one bug: of a run that ends at the first
confirmed violation, a known cause would be the end. A bug that is open in the release is there already.

What was found counts only if its case passes on the same engine without the bug: an unknown cause, or a mistake of the
suites, would end the run as well.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
from bug_list import Bug
from bug_runs import PlantedRun, planted_run

from coldproof.adapters.spec.engine_spec import MODEL
from coldproof.adapters.vllm.faults.catalogue import FAULTS
from coldproof.harness.case.repairs import KNOWN, WITHOUT
from coldproof.harness.option_table import option_words
from coldproof.harness.options import FINGERPRINT
from coldproof.harness.power.suite_run import RunPlan, run
from coldproof.harness.schema.exit_codes import EXIT_OK
from coldproof.harness.schema.power import SuiteRun

PROFILE, SEED, SERVER = "ci", 1, "vllm"
CROSSED = "MIXED-2"


def plan(bug: Bug, seconds: float) -> RunPlan:
    """Return the run of one bug, which ends at its first confirmed violation: in process, or on a server where the bug
    is in code that only a server has.
    """
    in_process = FINGERPRINT in FAULTS[bug.planted].workers
    return RunPlan(
        engine="" if in_process else SERVER,
        worker=FINGERPRINT if in_process else MODEL,
        seed=SEED,
        seconds=seconds,
        cells=(),
        profile=PROFILE,
        requirements=with_crossed(bug) if in_process else tuple(bug.requirements),
        fault=bug.planted,
        repairs=KNOWN if in_process else "",
        to_first=True,
    )


def with_crossed(bug: Bug) -> tuple[str, ...]:
    """Return the requirements of a bug, and the one about features that meet."""
    return tuple(dict.fromkeys((*bug.requirements, CROSSED)))


def open_plan(bug: Bug, seconds: float) -> RunPlan:
    """Return the run of one bug that is open, and a finding of this project."""
    return RunPlan(
        worker=FINGERPRINT,
        seed=SEED,
        seconds=seconds,
        cells=(),
        profile=PROFILE,
        requirements=with_crossed(bug),
        repairs=f"{KNOWN},{WITHOUT}{bug.finding}",
    )


def without(plan: RunPlan, case: Path) -> list[str]:
    """Return the command that replays a case of a run on its engine without the bug."""
    options = option_words(worker=plan.worker, repairs=plan.repairs, report_dir=case.parent / f"{case.stem}-without")
    return [sys.executable, "-m", "coldproof", "replay", str(case), *options]


def of_the_bug(plan: RunPlan, found: SuiteRun, folder: Path, replay: Callable[[list[str]], int]) -> SuiteRun:
    """Return what was found, or nothing of it if a case fails without the bug, too. `replay`: runs a command, and
    returns its exit code.
    """
    cases = sorted(path for path in (folder / "report" / "cases").glob("*.json") if not path.stem.endswith(".trace"))
    failing = [case.stem for case in cases if found.detections and replay(without(plan, case)) != EXIT_OK]
    if not failing:
        return found
    return msgspec.structs.replace(found, detections=[], problem=f"without the bug, too: {', '.join(failing)}")


def quietly(words: list[str]) -> int:
    """Run a command and return its exit code. What it prints is in its report."""
    return subprocess.run(words, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode


def run_once(bug: Bug, out: Path, seconds: float) -> PlantedRun:
    """Run a bug that is planted, and return what was found of it."""
    ask = plan(bug, seconds)
    found = of_the_bug(ask, run(ask, out), out, quietly)
    return planted_run(bug.planted, PROFILE, found)


def planted(bugs: Iterable[Bug], out: Path, *, seconds: float, jobs: int) -> Iterator[PlantedRun]:
    """Run each bug that is planted, and yield what was found. `seconds`: for drawing, for each bug."""
    here = [bug for bug in bugs if bug.planted]
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(lambda bug: run_once(bug, out / bug.id, seconds), here)


def still_open(bugs: Iterable[Bug], out: Path, *, seconds: float, jobs: int) -> Iterator[tuple[Bug, Path]]:
    """Run each bug that is open, and yield its results.json. `seconds`: for drawing, for each bug."""
    here = [bug for bug in bugs if bug.finding]
    with ThreadPoolExecutor(jobs) as pool:
        for bug, _ in zip(here, pool.map(lambda bug: run(open_plan(bug, seconds), out / bug.id), here), strict=True):
            yield bug, out / bug.id / "report" / "results.json"
