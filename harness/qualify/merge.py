"""`python -m reports merge DIR... --out DIR`: the shards of one run as one report, or as one bundle.

Shards keep their folders, events and seals; the report is drawn from all of their events. Nothing is joined that is not
of one run: a shard twice or missing, another version, engine or profile is refused.

Exit code: that of the run as a whole; 1 also where the shards are refused, each reason on a line; 3 where nothing could
be written; 4 usage.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.options import QUALIFY
from harness.qualify.coverage import check_shards
from harness.qualify.manifest import seal
from harness.qualify.part import EVENTS, SHARDS
from harness.qualify.reason import Reason, altered
from harness.qualify.united import results_of
from reports import command
from reports.assemble import EXIT_FAILED, EXIT_HARNESS, EXIT_USAGE, Event, last_of, read_events
from reports.text import one_line
from reports.write import write_all

# Of the start of a run: what all shards have in common, and what to call it.
ALIKE = {
    "version": "Coldproof's version",
    "profile": "the profile",
    "allowed": "what is let pass",
    "fault": "the fault",
}
COMMIT = "coldproof commit"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = command.Parser(prog="python -m reports merge", description="Joins the shards of one run.")
    parser.add_argument("shards", type=Path, nargs="+", metavar="DIR", help="the --report-dir of a run with --shard")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="a new folder")
    return command.run(merge, parser.parse_args(arguments))


def merge(options: argparse.Namespace) -> int:
    """Read, refuse or write. Raises command.Refusal."""
    if options.out.exists() and (not options.out.is_dir() or any(options.out.iterdir())):
        raise command.Refusal(EXIT_USAGE, f"--out {options.out} is there already: name a new folder")
    logs = [log_of(folder) for folder in options.shards]
    reasons = list(refused(logs))
    if reasons:
        lines = [f"REFUSED: {len(reasons)} reason{'s' * (len(reasons) != 1)}", *map(str, reasons)]
        command.tell("\n  ".join(map(one_line, lines)) + "\n")
        return EXIT_FAILED
    try:
        return join(options.shards, logs, options.out)
    except OSError as problem:
        raise command.Refusal(EXIT_HARNESS, f"cannot write {options.out}: {problem.strerror or problem}") from problem


def log_of(folder: Path) -> list[Event]:
    """A shard's events. Raises command.Refusal where the folder holds none of a run."""
    try:
        log = read_events(folder / EVENTS)
    except OSError as problem:
        raise command.Refusal(EXIT_USAGE, f"cannot read {folder / EVENTS}: {problem.strerror}") from problem
    if last_of(log, "run_started") is None:
        raise command.Refusal(EXIT_USAGE, f"{folder / EVENTS} holds no start of a run")
    return log


def refused(logs: Sequence[list[Event]]) -> Iterator[Reason]:
    """Why these are not the shards of one run."""
    starts = [start for log in logs if (start := last_of(log, "run_started")) is not None]
    yield from check_shards([start.get("shard", "") for start in starts])
    for field, name in ALIKE.items():
        yield from unequal(name, [start.get(field) for start in starts])
    yield from unequal("the commit", [start["environment"].get(COMMIT) for start in starts])
    told = [(last_of(log, "engine") or {}).get("engine") for log in logs]
    engines = [engine for engine in told if engine is not None]
    for field in ("name", "version", "adapter", "worker"):
        yield from unequal(f"the engine's {field}", [engine[field] for engine in engines])
    places = Counter((e["id"], e["test"], e["cell"]) for log in logs for e in log if e["event"] == "requirement")
    twice = sorted(place for place, times in places.items() if times > 1)
    if twice:
        requirement, test, cell = twice[0]
        yield altered(f"{len(twice)} tests were run in several of them: {requirement} ({test}) in {cell}, ...")


def unequal(name: str, values: Sequence[object]) -> Iterator[Reason]:
    """One reason where these are not all the same."""
    told = dict.fromkeys(map(str, values))
    if len(told) > 1:
        yield altered(f"{name} is not the same in all of them: {', '.join(told)}")


def join(folders: Sequence[Path], logs: Sequence[list[Event]], out: Path) -> int:
    """Write the whole. Raises OSError."""
    cases = out / "cases"
    cases.mkdir(parents=True)
    kept = []
    for folder, log in zip(folders, logs, strict=True):
        shard = (last_of(log, "run_started") or {})["shard"]
        kept.append(out / SHARDS / shard.partition("/")[0])
        shutil.copytree(folder, kept[-1], symlinks=True)
        for case in (folder / "cases").glob("*"):
            shutil.copyfile(case, cases / case.name)
    results = results_of(sorted(kept, key=lambda path: int(path.name)))
    write_all(results, out)
    if results.profile == QUALIFY:
        seal(out)
    command.tell(f"{results.headline}\nreport: {out / 'index.html'}\n")
    return results.exit_code


if __name__ == "__main__":
    sys.exit(main())
