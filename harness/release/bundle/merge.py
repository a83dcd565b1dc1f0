"""Merges the shards of one run into one report, or into one bundle.

Shards keep their folders, events and manifests. The report is generated from the events of all shards. Shards that do
not belong to one run are refused: a duplicated or missing shard, or another version, engine or profile.

Shards run at different times. In the merged report all shards start at the same moment, so that times are relative to
the start of each shard.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from coldproof.harness.options import QUALIFY, UsageError
from coldproof.harness.release.bundle.check_coverage import check_shards
from coldproof.harness.release.bundle.refusal import Reason, not_accepted
from coldproof.harness.release.bundle.run_folder import EVENTS, SHARDS
from coldproof.harness.release.run.attestation import write_attestation
from coldproof.harness.release.run.manifest import seal
from coldproof.harness.release.run.merged import (
    Member,
    merged_environments,
    merged_results,
    merged_values,
    merged_waivers,
    stored,
)
from coldproof.harness.release.run.record import Qualification
from coldproof.harness.schema.results import Results
from coldproof.harness.schema.stored_files import UnreadableFile, check_files_below, copy_file, copy_folder, files_below
from coldproof.reports.assemble.assemble import Event, last_of, read_events
from coldproof.reports.exports.write import write_all
from coldproof.reports.files.own_folder import claim, mark

# The fields of a run's start that must be equal in all shards, and their names in messages.
ALIKE = {
    "version": "Coldproof's version",
    "profile": "the profile",
    "allowed": "the set of allowed verdicts",
    "fault": "the fault",
    "repairs": "the repairs",
    "least_shown": "the number of --allow-not-exercised",
}
COMMIT = "coldproof commit"


def read_shard(folder: Path) -> list[Event]:
    """Return a shard's events. Raises UsageError if the folder has no events of a run, or something else than files."""
    try:
        check_files_below(folder)
        log = read_events(folder / EVENTS)
    except OSError as problem:
        raise UsageError(f"cannot read {folder / EVENTS}: {problem.strerror}") from problem
    except UnreadableFile as problem:
        raise UsageError(f"cannot read {folder}: {problem}") from problem
    if last_of(log, "run_started") is None:
        raise UsageError(f"{folder / EVENTS} has no start of a run")
    return log


def refusals(logs: Sequence[list[Event]]) -> Iterator[Reason]:
    """Yield the reasons why these are not the shards of one run."""
    starts = [start for log in logs if (start := last_of(log, "run_started")) is not None]
    shards = [str(start.get("shard", "")) for start in starts]
    if shards == [""]:
        yield not_accepted("these are not the shards of one run: a whole run")
    yield from check_shards(shards)
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
        yield not_accepted(f"{len(twice)} tests ran in more than one shard: {requirement} ({test}) in {cell}, ...")


def check_equal(name: str, values: Sequence[object]) -> Iterator[Reason]:
    """Yield one reason if these values are not all equal."""
    if len(different := dict.fromkeys(map(str, values))) > 1:
        yield not_accepted(f"{name} is not the same in all shards: {', '.join(different)}")


def merge_shards(folders: Sequence[Path], logs: Sequence[list[Event]], out: Path) -> Results:
    """Write the merged report and return its results. Raises OSError, or UnreadableFile for what is no regular file."""
    cases = out / "cases"
    cases.mkdir(parents=True)
    mark(out)
    kept = []
    shards = sorted(zip(map(shard_number, logs), folders, logs, strict=True), key=lambda shard: shard[0])
    for number, folder, _ in shards:
        kept.append(out / SHARDS / str(number))
        copy_folder(folder, kept[-1])
        for name in files_below(folder / "cases"):  # beside a case, a folder may have its replay
            if name.parent == Path() and not (cases / name).exists():
                copy_file(folder / "cases" / name, claim(cases / name))
    results = bundle_results(kept)
    write_all(results, out)
    if results.profile == QUALIFY:
        seal(out)
        if (made := last_of(shards[0][2], "qualification")) is not None:
            write_attestation(out, results, msgspec.convert(made["qualification"], Qualification))
    return results


def shard_number(log: list[Event]) -> int:
    """Return the number of the shard with these events. Raises LookupError or ValueError for a run without one."""
    return int((last_of(log, "run_started") or {})["shard"].partition("/")[0])


def bundle_results(folders: Sequence[Path]) -> Results:
    """Return the results of these folders' events, as they are written to results.json.

    Raises LookupError if a folder has no start of a run, and OSError.
    """
    logs = [read_events(folder / EVENTS) for folder in folders]
    return stored(logs[0]) if len(logs) == 1 else merged_shards(logs)


def merged_shards(logs: Sequence[list[Event]]) -> Results:
    """Return the results of several shards as those of one run. Raises LookupError if a shard has no start."""
    starts = [start for log in logs if (start := last_of(log, "run_started")) is not None]
    if len(starts) < len(logs):
        raise LookupError("the events have no start of a run")
    first = min(starts, key=lambda start: start["at"])
    shards = [
        Member(f"shard {start.get('shard', '')}", log, start, first["at"])
        for log, start in zip(logs, starts, strict=True)
    ]
    differing = {name: merged_values((one.name, one.start[name]) for one in shards) for name in ("seed", "command")}
    finished = [last_of(log, "run_finished") for log in logs]
    return merged_results(
        shards,
        {**first, **differing, "shard": "", "environment": merged_environments(shards)},
        [],
        waivers=merged_waivers(logs),
        complete=all(event is not None and event["complete"] for event in finished),
    )
