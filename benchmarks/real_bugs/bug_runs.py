"""What runs on releases, and runs with planted bugs, say of the list. Recorded once, so that the page needs no run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
from bug_list import FOLDER, Bug, read_bugs

from coldproof.harness.case.finding_folder import without_paths
from coldproof.harness.case.known_issues import Waivers, today
from coldproof.harness.engine_releases.release_runs import finished, row_of
from coldproof.harness.schema.case import Case
from coldproof.harness.schema.power import PowerResults, SuiteRun
from coldproof.harness.schema.releases import ReleaseHistory, ReleaseRow
from coldproof.harness.schema.results import Results, read_results
from coldproof.harness.schema.verdict import FailureClass, Verdict

VERDICTS, PLANTED = FOLDER / "verdicts.json", FOLDER / "planted.json"
NAMED = "named cell"  # of a planted bug: requirements and cells were named


class Counterexample(msgspec.Struct, frozen=True, omit_defaults=True):
    """A case of a run. `passes_on`: other releases on which its replay conforms. `causes`: the findings whose repairs
    end it.
    """

    signature: str
    sentence: str
    passes_on: list[str] = []
    causes: list[str] = []


class Tested(msgspec.Struct, frozen=True, kw_only=True):
    """One requirement in one run."""

    verdict: Verdict
    examples: int
    requests: int
    cases: list[Counterexample] = []
    errors: list[str] = []  # the cells in which it could not be tested


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The requirements that the list names, in one run on one release."""

    engine: str
    release: str
    command: str
    seconds: float
    verdicts: dict[str, Tested]
    whole: bool = True  # not cut short by a time limit


class PlantedRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run with a planted bug. `profile`: what was run, or NAMED. `requirement` and the rest: the first violation."""

    fault: str
    profile: str
    acted: bool
    requests: int  # up to the first violation; without one, all
    requirement: str = ""
    cell: str = ""
    failure: str = ""
    sentence: str = ""
    problem: str = ""


def failure_of(signature: str) -> FailureClass:
    """Return the failure class, with which a signature begins."""
    return FailureClass(signature.partition(";")[0].strip())


def recorded(engine: str, file: Path, bugs: Sequence[Bug]) -> Iterator[Run]:
    """Yield what a history, or one run, says about the releases and requirements of the list."""
    mine = [bug for bug in bugs if bug.engine == engine and not bug.cannot]
    for command, row, whole in rows(file):
        names = {name for bug in mine if row.version in (bug.before, bug.after) for name in bug.requirements}
        verdicts = {name: tested(row, name, file) for name in sorted(names) if name in row.verdicts}
        if verdicts:
            yield Run(
                engine=engine,
                release=row.version,
                command=without_folders(command),
                seconds=row.seconds,
                verdicts=verdicts,
                whole=whole,
            )


def without_folders(command: str) -> str:
    """Return a command without the folders of the machine that it ran on: of each path, the last name is left."""
    return str(without_paths(re.sub(r" --rootdir=\S+", "", command)))


def rows(file: Path) -> list[tuple[str, ReleaseRow, bool]]:
    """Return each release of a file with the command of its run, and whether that run came to its end."""
    if file.name == "history.json":
        history = msgspec.json.decode(file.read_bytes(), type=ReleaseHistory)
        return [(history.command, row, True) for row in history.releases]
    results = read_results(file)
    version = (results.engine and results.engine.version) or ""
    causes = Waivers([], version=version, today=today())  # the page does not show them
    return [(results.command, row_of(version, results, file.parent.name, causes), results.complete)]


def tested(row: ReleaseRow, requirement: str, file: Path) -> Tested:
    """Return one verdict of a release. Beside `file`, its cases may have been replayed."""
    found = row.verdicts[requirement]
    folder = file.parent if file.name == "history.json" else file.parent.parent
    cases = [
        Counterexample(one.signature, one.sentence, passes_on(file.parent, path.stem), causes_of(path))
        for one in found.cases
        for path in [folder / one.file]
    ]
    return Tested(
        verdict=found.verdict, examples=found.examples, requests=found.requests, cases=cases, errors=found.errors
    )


def causes_of(path: Path) -> list[str]:
    """Return the findings whose repairs end a saved case; none if there is no such file."""
    case = msgspec.json.decode(path.read_bytes(), type=Case) if path.is_file() else None
    known = case.attribution if case is not None else None
    return [known.finding, *known.with_findings] if known is not None and known.is_known else []


def passes_on(out: Path, case: str) -> list[str]:
    """Return the releases on which `coldproof bisect` has replayed a case, and it passed."""
    folders = sorted(folder for folder in (out / "replays" / case).glob("*") if folder.is_dir())
    ended = ((folder.name, finished(folder)) for folder in folders)
    return [name for name, results in ended if results is not None and all_conform(results)]


def all_conform(results: Results) -> bool:
    """Return whether a replay tested something, and nothing failed."""
    return bool(results.requirements) and all(one.verdict is Verdict.CONFORMS for one in results.requirements)


def replays(words: Sequence[str]) -> Iterator[str]:
    """Yield the command that replays each case of these histories that a bug of the list may have caused."""
    for engine, _, name in (word.partition("=") for word in words):
        file = Path(name)
        rows_of = {row.version: row for _, row, _ in rows(file)}
        for bug in read_bugs():
            row = rows_of.get(bug.before) if bug.engine == engine and not bug.cannot else None
            verdicts = row.verdicts if row is not None else {}
            cases = [case for name in bug.requirements if name in verdicts for case in verdicts[name].cases]
            for case in (one for one in cases if failure_of(one.signature) in bug.failures):
                path, out = file.parent / case.file, file.parent
                yield f"coldproof bisect {path} --releases {bug.after} --out {out}  # {bug.id}"


def read_runs() -> list[Run]:
    """Return the recorded runs."""
    return msgspec.json.decode(VERDICTS.read_bytes(), type=list[Run]) if VERDICTS.is_file() else []


def planted_runs(results: PowerResults) -> Iterator[PlantedRun]:
    """Yield the runs of a power.json: one of a profile, or of the requirements about a fault."""
    for row in results.faults:
        for profile, run in (*((name, row.wide) for name in results.budgets), (NAMED, row.aimed)):
            if run is not None:
                yield planted_run(row.name, profile, run)


def planted_run(fault: str, profile: str, run: SuiteRun) -> PlantedRun:
    """Return what one run with a fault found."""
    unseen = PlantedRun(fault=fault, profile=profile, acted=run.acted, requests=run.requests, problem=run.problem)
    if not run.detections:
        return unseen
    first = min(run.detections, key=lambda one: one.requests)
    return msgspec.structs.replace(
        unseen,
        requests=first.requests,
        requirement=first.requirement,
        cell=first.cell,
        failure=first.failure_class,
        sentence=first.sentence,
    )


def read_planted() -> list[PlantedRun]:
    """Return the recorded runs with planted bugs."""
    return msgspec.json.decode(PLANTED.read_bytes(), type=list[PlantedRun]) if PLANTED.is_file() else []


def record_planted(found: Iterable[PlantedRun]) -> None:
    """Keep these runs, each in place of an earlier one with its fault and profile."""
    runs = {(run.fault, run.profile): run for run in (*read_planted(), *found)}
    PLANTED.write_bytes(msgspec.json.format(msgspec.json.encode([runs[key] for key in sorted(runs)]), indent=1) + b"\n")


def record(engine: str, file: Path) -> None:
    """Keep the verdicts of a file, in place of those of the same commands."""
    runs = {(run.engine, run.release, run.command): run for run in read_runs()}
    runs |= {(run.engine, run.release, run.command): run for run in recorded(engine, file, read_bugs())}
    kept = [runs[key] for key in sorted(runs)]
    VERDICTS.write_bytes(msgspec.json.format(msgspec.json.encode(kept), indent=1) + b"\n")
