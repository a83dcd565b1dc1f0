"""Runs the profile `ci` with each bug that is planted again: the requirements that the list names, in all of its cells.

Which cells are needed is not said, and most of the time goes into others. MIXED-2 runs with them, which is about
features that meet: in each run of the profile, its crossed cells have a fourth of the time. `coldproof power --wide ci`
runs all requirements, for hours.

All other known causes of the release are repaired, so that the engine has this one bug: of a run that ends at the first
confirmed violation, a known cause would be the end. A bug that is open in the release is there already.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bug_list import Bug
from bug_runs import PlantedRun, planted_run

from coldproof.adapters.spec.engine_spec import MODEL
from coldproof.adapters.vllm.faults.catalogue import FAULTS
from coldproof.harness.case.repairs import KNOWN, WITHOUT
from coldproof.harness.options import FINGERPRINT
from coldproof.harness.power.suite_run import RunPlan, run

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


def planted(bugs: Iterable[Bug], out: Path, *, seconds: float, jobs: int) -> Iterator[PlantedRun]:
    """Run each bug that is planted, and yield what was found. `seconds`: for drawing, for each bug."""
    here = [bug for bug in bugs if bug.planted]
    with ThreadPoolExecutor(jobs) as pool:
        runs = pool.map(lambda bug: run(plan(bug, seconds), out / bug.id), here)
        yield from (planted_run(bug.planted, PROFILE, found) for bug, found in zip(here, runs, strict=True))


def still_open(bugs: Iterable[Bug], out: Path, *, seconds: float, jobs: int) -> Iterator[tuple[Bug, Path]]:
    """Run each bug that is open, and yield its results.json. `seconds`: for drawing, for each bug."""
    here = [bug for bug in bugs if bug.finding]
    with ThreadPoolExecutor(jobs) as pool:
        for bug, _ in zip(here, pool.map(lambda bug: run(open_plan(bug, seconds), out / bug.id), here), strict=True):
            yield bug, out / bug.id / "report" / "results.json"
