"""`coldproof history` and `coldproof bisect`: several releases of one engine, each in an environment of its own.

`history` runs the suites against each release, and draws one page, requirement by release. `bisect` replays one case on
each. Both keep what they have run in `--out`, and resume.

Exit code: 0 all releases were tested; 3 one could not be installed or its run failed, or a file cannot be written;
4 wrong usage; 130 interrupted, with the page of what was done so far.
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from coldproof.adapters.registry import ENGINES
from coldproof.adapters.spec.engine_spec import EngineSpec
from coldproof.harness.cli.io import FAILED, Subcommand, argument, out_folder, own_folder, say
from coldproof.harness.engine_releases.release_runs import (
    ReleaseRuns,
    history_of,
    interpreters,
    package_folders,
)
from coldproof.harness.engine_releases.replays import replayed, summary
from coldproof.harness.engine_releases.versions import chosen_releases
from coldproof.harness.options import INVALID_DURATION, UsageError, parse_duration
from coldproof.harness.schema.releases import ReleaseRow
from coldproof.harness.schema.results import Results, encode
from coldproof.harness.session.environment import coldproof_version
from coldproof.reports.exports.write import write_text
from coldproof.reports.format.text import many
from coldproof.reports.side_by_side import kinds
from coldproof.reports.side_by_side.columns import Explanation, Source
from coldproof.reports.side_by_side.matrix import Made, SideBySide, side_by_side
from coldproof.reports.side_by_side.page import render_side_by_side

EXIT_INTERRUPTED = 130
HISTORY_FILE = "history.json"


def engine_of(name: str) -> EngineSpec:
    """Return an engine that has releases. Raises UsageError."""
    spec = ENGINES.get(name)
    if spec is None or spec.releases is None:
        known = ", ".join(sorted(one.name for one in ENGINES.values() if one.releases is not None))
        raise UsageError(f"--engine {name}: choose one of {known}")
    return spec


def runs_of(options: argparse.Namespace) -> tuple[ReleaseRuns, list[str]]:
    """Return what to run, and on which releases. Raises UsageError."""
    engine = engine_of(options.engine)
    assert engine.releases is not None
    seconds = parse_duration(options.limit)
    if seconds is None:
        raise UsageError(f"--limit {options.limit!r}: {INVALID_DURATION}")
    runs = ReleaseRuns(
        engine=engine,
        arguments=tuple(shlex.split(options.arguments)),
        out=options.out,
        seconds=seconds,
        pythons=interpreters(options.python),
        packages=package_folders(options.packages),
        say=say,
    )
    return runs, chosen_releases(options.releases, engine.releases.name)


def run_history(options: argparse.Namespace) -> int:
    """Run the suites against each release, write history.json and index.html, and return the exit code."""
    runs, releases = runs_of(options)
    rows: list[ReleaseRow] = []
    with own_folder(options.out):
        try:
            for version in releases:
                rows.append(runs.row(version))
                say(f"{version}: {rows[-1].problem or verdicts_text(rows[-1])}")
                shown = written(options, runs, rows, complete=version == releases[-1])
        except KeyboardInterrupt:
            say(f"interrupted; {len(rows)} of {len(releases)} releases are in {options.out / 'index.html'}")
            return EXIT_INTERRUPTED
    say(f"{shown.headline}\n{options.out / 'index.html'}")
    return FAILED if any(row.problem for row in rows) else 0


def written(options: argparse.Namespace, runs: ReleaseRuns, rows: list[ReleaseRow], *, complete: bool) -> SideBySide:
    """Write both files for the releases so far, and return what the page shows."""
    version = coldproof_version()
    history = history_of(runs, rows, command=options.command_line, version=version, complete=complete)
    write_text(options.out / HISTORY_FILE, encode(history).decode())
    made = Made(
        headline=f"{history.engine}: {sum(not row.problem for row in rows)} of {many(len(rows), 'release')} tested",
        command=options.command_line,
        version=version,
        file=HISTORY_FILE,
        missing=tuple(f"{row.version}: {row.problem}" for row in rows if row.problem),
        complete=complete,
    )
    sources = [release_source(row, found) for row in rows if (found := runs.results(row.version)) is not None]
    shown = side_by_side(sources, kinds.RELEASES, made)
    write_text(options.out / "index.html", render_side_by_side(shown))
    return shown


def release_source(row: ReleaseRow, results: Results) -> Source:
    """Return one release as a column: the results of its run, with the known causes of its counterexamples."""
    found = [case for verdict in row.verdicts.values() for case in verdict.cases if case.cause]
    return Source(
        results=results,
        label=row.version,
        link=f"{row.report}/index.html",
        cases=f"{row.report}/cases",
        name=row.report,
        explained={case.id: Explanation(case.cause, case.link) for case in found},
        said=(f"Cells with an error: {', '.join(row.errors)}",) if row.errors else (),
    )


def verdicts_text(row: ReleaseRow) -> str:
    """Return how many requirements have each verdict."""
    found = [one.verdict for one in row.verdicts.values()]
    return ", ".join(f"{found.count(verdict)} {verdict.value.lower()}" for verdict in dict.fromkeys(sorted(found)))


def run_bisect(options: argparse.Namespace) -> int:
    """Replay a case on each release, say on which it fails, and return the exit code."""
    runs, releases = runs_of(options)
    with own_folder(options.out):
        found = []
        for version in releases:
            found.append(replayed(runs, options.case, version))
            say(f"{version}: {found[-1].words}")
    say(summary(found))
    return FAILED if any(one.fails is None for one in found) else 0


OPTIONS = (
    argument("--engine", default="vllm-inproc", metavar="NAME", help="default: vllm-inproc"),
    argument(
        "--releases", required=True, metavar="A,B,... or A..B", help="releases, or all that pip finds from A to B"
    ),
    argument(
        "--arguments", default="", metavar='"..."', help='further options of each run, for example "--budget 60s"'
    ),
    argument(
        "--python",
        action="append",
        default=[],
        metavar="RELEASE=PATH",
        help="an interpreter that has this release and Coldproof; may be repeated (default: an environment is made)",
    ),
    argument(
        "--packages",
        action="append",
        default=[],
        metavar="RELEASES=FOLDER",
        help="packages for these releases in front of the installed ones, such as another torch; may be repeated",
    ),
    argument("--limit", default="30m", metavar="TIME", help="time after which a run is ended (default: 30m)"),
)
HISTORY = Subcommand(
    "test several releases of an engine, and show requirement by release",
    run_history,
    *OPTIONS,
    out_folder("coldproof-report/history"),
)
BISECT = Subcommand(
    "replay a case on several releases of its engine",
    run_bisect,
    argument("case", type=Path, metavar="CASE.json", help="the case"),
    *OPTIONS,
    out_folder("coldproof-report/bisect"),
)
