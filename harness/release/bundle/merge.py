"""Merges the shards of one run into one report, or into one bundle.

Shards keep their folders, events and manifests. The report is generated from the events of all shards. Shards that do
not belong to one run are refused: a duplicated or missing shard, or another version, engine or profile.

Shards run at different times. In the merged report all shards start at the same moment, so that times are relative to
the start of each shard.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from coldproof.harness.case.known_issues import KnownIssue, passes
from coldproof.harness.options import QUALIFY, UsageError
from coldproof.harness.release.bundle.check_coverage import check_shards
from coldproof.harness.release.bundle.refusal import Reason, not_accepted
from coldproof.harness.release.bundle.run_folder import EVENTS, SHARDS
from coldproof.harness.release.run.attestation import write_attestation
from coldproof.harness.release.run.manifest import seal
from coldproof.harness.release.run.record import Qualification
from coldproof.reports.assemble.assemble import Event, assemble, last_of, read_events
from coldproof.reports.exports.write import write_all
from coldproof.reports.files.own_folder import claim, mark
from coldproof.reports.format.text import storable
from coldproof.reports.schema.results import RequirementResult, Results, Waiver
from coldproof.reports.schema.stored_files import UnreadableFile, check_files_below, copy_file, copy_folder, files_below

# The fields of a run's start that must be equal in all shards, and their names in messages.
ALIKE = {
    "version": "Coldproof's version",
    "profile": "the profile",
    "allowed": "the set of allowed verdicts",
    "fault": "the fault",
    "least_shown": "the number of --allow-not-exercised",
}
COMMIT = "coldproof commit"
ONCE = ("run_started", "run_finished", "waivers", "qualification")  # the merged run has one of each


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
    results = assemble(logs[0] if len(logs) == 1 else merge_logs(logs))
    return msgspec.convert(storable(msgspec.to_builtins(results)), Results)


def merge_logs(logs: Sequence[list[Event]]) -> list[Event]:
    """Return the events of several shards as those of one run. Raises LookupError if a shard has no start."""
    starts = [last_of(log, "run_started") for log in logs]
    begun = [start for start in starts if start is not None]
    if len(begun) < len(logs):
        raise LookupError("the events have no start of a run")
    first = min(begun, key=lambda start: start["at"])
    between = [
        {**event, "at": round(event["at"] - start["at"] + first["at"], 3)}
        for log, start in zip(logs, begun, strict=True)
        for event in log
        if event["event"] not in ONCE
    ]
    between.sort(key=lambda event: event["at"])
    end = between[-1]["at"] if between else first["at"]
    finished = [last_of(log, "run_finished") for log in logs]
    complete = all(event is not None and event["complete"] for event in finished)
    events = [{**first, **merged_start(begun)}, *between]
    return [
        *events,
        {"event": "waivers", "at": end, "waivers": waiver_rows(logs, assemble(events).requirements)},
        {"event": "run_finished", "at": end, "complete": complete},
    ]


def merged_start(starts: Sequence[Event]) -> Event:
    """Return the fields of the merged start that may differ between shards."""
    named = [(start.get("shard", ""), start) for start in starts]
    return {
        "shard": "",
        "seed": merge_values(((shard, start["seed"]) for shard, start in named), of="shard "),
        "command": merge_values(((shard, start["command"]) for shard, start in named), of="shard "),
        "environment": merge_environments(named, of="shard "),
    }


def merge_environments(starts: Sequence[tuple[str, Event]], *, of: str = "") -> dict[str, str]:
    """Return the merged facts about the machines, from start events with the names of their owners."""
    return {
        name: merge_values(((who, start["environment"].get(name, "unknown")) for who, start in starts), of=of)
        for name in dict.fromkeys(name for _, start in starts for name in start["environment"])
    }


def merge_values(values: Iterable[tuple[str, str]], *, of: str = "") -> str:
    """Return the value that all share, or each value with the names of its owners. `of`: a word before the names."""
    whose: dict[str, list[str]] = defaultdict(list)
    for who, value in values:
        whose[value].append(who)
    if len(whose) == 1:
        return next(iter(whose))
    return "; ".join(f"{value} ({of}{', '.join(dict.fromkeys(who))})" for value, who in whose.items())


def waiver_rows(logs: Sequence[list[Event]], requirements: list[RequirementResult]) -> list[dict[str, object]]:
    """Return every known issue with its state in the merged run."""
    rows: dict[tuple[object, ...], list[Waiver]] = {}
    for log in logs:
        for row in msgspec.convert((last_of(log, "waivers") or {}).get("waivers", []), list[Waiver]):
            rows.setdefault((row.requirement, row.cell, row.signature, row.fingerprint, row.versions), []).append(row)
    return [msgspec.to_builtins(merge_waiver_rows(same, requirements)) for same in rows.values()]


def merge_waiver_rows(rows: list[Waiver], requirements: list[RequirementResult]) -> Waiver:
    """Merge the rows of one known issue. It is used if any shard used it, and stale only if the merged run says so."""
    used, first = [name for row in rows for name in row.cases], rows[0]
    state = "used" if used else first.state
    if not used and len({row.state for row in rows}) > 1:
        issue = KnownIssue(first.requirement, first.versions, first.reason, first.link, cell=first.cell)
        state = "stale" if passes(issue, requirements) else "not exercised"
    return msgspec.structs.replace(first, cases=used, state=state)
