"""Merges the shards of one run into one report, or into one bundle.

Shards keep their folders, events and manifests. The report is generated from the events of all shards. Shards that do
not belong to one run are refused: a duplicated or missing shard, or another version, engine or profile.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from coldproof.harness.options import QUALIFY, UsageError
from coldproof.harness.release.bundle.check_coverage import check_shards
from coldproof.harness.release.bundle.merged_events import bundle_results
from coldproof.harness.release.bundle.refusal import Reason, altered
from coldproof.harness.release.bundle.run_folder import EVENTS, SHARDS
from coldproof.harness.release.run.manifest import seal
from coldproof.reports.assemble.assemble import Event, last_of, read_events
from coldproof.reports.exports.write import write_all
from coldproof.reports.schema.results import Results

# The fields of a run's start that must be equal in all shards, and their names in messages.
ALIKE = {
    "version": "Coldproof's version",
    "profile": "the profile",
    "allowed": "the set of allowed verdicts",
    "fault": "the fault",
}
COMMIT = "coldproof commit"


def read_shard(folder: Path) -> list[Event]:
    """Return a shard's events. Raises UsageError if the folder has no events of a run."""
    try:
        log = read_events(folder / EVENTS)
    except OSError as problem:
        raise UsageError(f"cannot read {folder / EVENTS}: {problem.strerror}") from problem
    if last_of(log, "run_started") is None:
        raise UsageError(f"{folder / EVENTS} has no start of a run")
    return log


def refusals(logs: Sequence[list[Event]]) -> Iterator[Reason]:
    """Yield the reasons why these are not the shards of one run."""
    starts = [start for log in logs if (start := last_of(log, "run_started")) is not None]
    yield from check_shards([start.get("shard", "") for start in starts])
    for field, name in ALIKE.items():
        yield from check_equal(name, [start.get(field) for start in starts])
    yield from check_equal("the commit", [start["environment"].get(COMMIT) for start in starts])
    starts_of_engines = [(last_of(log, "engine") or {}).get("engine") for log in logs]
    engines = [engine for engine in starts_of_engines if engine is not None]
    for field in ("name", "version", "adapter", "worker"):
        yield from check_equal(f"the engine's {field}", [engine[field] for engine in engines])
    places = Counter((e["id"], e["test"], e["cell"]) for log in logs for e in log if e["event"] == "requirement")
    twice = sorted(place for place, times in places.items() if times > 1)
    if twice:
        requirement, test, cell = twice[0]
        yield altered(f"{len(twice)} tests ran in more than one shard: {requirement} ({test}) in {cell}, ...")


def check_equal(name: str, values: Sequence[object]) -> Iterator[Reason]:
    """Yield one reason if these values are not all equal."""
    different = dict.fromkeys(map(str, values))
    if len(different) > 1:
        yield altered(f"{name} is not the same in all shards: {', '.join(different)}")


def merge_shards(folders: Sequence[Path], logs: Sequence[list[Event]], out: Path) -> Results:
    """Write the merged report and return its results. Raises OSError."""
    cases = out / "cases"
    cases.mkdir(parents=True)
    kept = []
    for folder, log in zip(folders, logs, strict=True):
        shard = (last_of(log, "run_started") or {})["shard"]
        kept.append(out / SHARDS / shard.partition("/")[0])
        shutil.copytree(folder, kept[-1], symlinks=True)
        for case in (folder / "cases").glob("*"):
            shutil.copyfile(case, cases / case.name)
    results = bundle_results(sorted(kept, key=lambda path: int(path.name)))
    write_all(results, out)
    if results.profile == QUALIFY:
        seal(out)
    return results
