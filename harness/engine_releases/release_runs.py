"""Runs one profile against each release of an engine, and collects the verdicts. A finished run is not repeated."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from coldproof.adapters.spec.engine_spec import EngineSpec
from coldproof.harness.case.known_issues import Waivers, read_known_issues, today, without_end
from coldproof.harness.engine_releases.environment import NoEnvironment, prepared
from coldproof.harness.engine_releases.versions import is_among
from coldproof.harness.option_table import option_words
from coldproof.harness.options import UsageError
from coldproof.harness.schema.case import Case
from coldproof.harness.schema.exit_codes import CONCLUDED
from coldproof.harness.schema.releases import ReleaseCase, ReleaseHistory, ReleaseRow, ReleaseVerdict, RequirementHead
from coldproof.harness.schema.results import Results, results_in
from coldproof.harness.schema.verdict import Verdict
from coldproof.reports.files.own_folder import claim


class ReleaseRuns(msgspec.Struct, frozen=True, kw_only=True):
    """What runs against each release. `arguments`: further options of `coldproof run`. `out`: the folder of all files.

    `pythons`: interpreters of the user's, by release. `packages`: folders with packages, with the releases that need
    them. `seconds`: after which a run is ended.
    """

    engine: EngineSpec
    arguments: tuple[str, ...]
    out: Path
    seconds: float
    pythons: Mapping[str, Path] = {}
    packages: tuple[tuple[str, Path], ...] = ()
    say: Callable[[str], None]

    def row(self, version: str) -> ReleaseRow:
        """Return the verdicts of one release, from an earlier run or from a new one."""
        folder = self.out / "runs" / version
        results = finished(folder)
        if results is None:
            try:
                python = self.python(version)
            except NoEnvironment as problem:
                return ReleaseRow(version=version, verdicts={}, problem=f"not installed: {problem}")
            self.say(f"{version}: running the suites")
            command = [str(python), *self.words(folder, "run", *option_words(engine=self.engine.name))]
            ended = run_suites(command, folder, self.seconds)
            results = finished(folder)
            if results is None:
                return ReleaseRow(version=version, verdicts={}, problem=ended, report=relative(folder, self.out))
        return row_of(version, results, relative(folder, self.out), self.causes(version, results))

    def results(self, version: str) -> Results | None:
        """Return the results of a release whose run came to its end."""
        return finished(self.out / "runs" / version)

    def python(self, version: str) -> Path:
        """Return the interpreter for a release. Raises NoEnvironment."""
        if version in self.pythons:
            return self.pythons[version]
        if self.engine.releases is None:
            raise NoEnvironment("Coldproof does not install releases of this engine; give an interpreter with --python")
        folder = self.out / "environments" / version
        packages = [place for releases, place in self.packages if is_among(version, releases)]
        return prepared(self.engine.releases, version, folder, self.say, packages=packages)

    def causes(self, version: str, results: Results) -> Waivers:
        """Return what is known of the engine's defects, in this release. It waives nothing: it explains."""
        files = (self.engine.known_issues, self.engine.past_issues)
        issues = [without_end(issue) for path in files for issue in read_known_issues(path)]
        worker = results.engine.worker if results.engine is not None else ""
        return Waivers(issues, version=version, today=today(), worker=worker)

    def words(self, folder: Path, *command: str) -> list[str]:
        """Return the command line behind the interpreter, of a command of ours that writes its report into a folder."""
        return ["-m", "coldproof", *command, *option_words(report_dir=folder.absolute()), *self.arguments]


def run_suites(command: Sequence[str], folder: Path, seconds: float) -> str:
    """Run the suites, with their output in a file of the folder. Return why they did not come to their end, or ""."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder.with_suffix(f"{folder.suffix}.log")
    with claim(log).open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.terminate()  # the run then writes its report
            process.wait()
            return f"ended after {seconds:.0f} s"
        except BaseException:  # Ctrl-C
            process.terminate()
            process.wait()
            raise
    return f"the run ended with exit code {code}; its output is in {log.name}"


def finished(folder: Path) -> Results | None:
    """Return the results of a run that came to its end; None for any other."""
    results = results_in(folder)
    return results if results is not None and results.complete and results.exit_code in CONCLUDED else None


def row_of(version: str, results: Results, report: str, causes: Waivers) -> ReleaseRow:
    """Return the row of a release from its results. A known issue is a violation like any other, with its cause."""
    cases = {case.id: case for case in results.cases}
    verdicts = {
        one.id: ReleaseVerdict(
            verdict=one.verdict,
            reason=one.reason,
            examples=one.examples,
            requests=one.requests,
            cases=[release_case(case, report, causes) for case in map(cases.__getitem__, one.cases)],
            errors=[cell.cell for cell in one.cells if cell.verdict is Verdict.ERROR],
        )
        for one in results.requirements
    }
    requests = results.totals.get("requests", sum(one.requests for one in results.requirements))
    return ReleaseRow(version=version, verdicts=verdicts, requests=requests, seconds=results.duration_s, report=report)


def release_case(case: Case, report: str, causes: Waivers) -> ReleaseCase:
    """Return a counterexample of a release, with what is known of its cause."""
    known = causes.explain(case)
    return ReleaseCase(
        id=case.id,
        signature=case.signature,
        sentence=case.sentence,
        file=f"{report}/cases/{case.id}.json",
        cause="" if known is None else known.reason,
        link="" if known is None else known.link,
    )


def heads(found: Sequence[Results]) -> dict[str, RequirementHead]:
    """Return the requirements of several runs, sorted by id."""
    all_of = {
        one.id: RequirementHead(title=one.title, upstream=one.upstream) for run in found for one in run.requirements
    }
    return dict(sorted(all_of.items()))


def history_of(
    runs: ReleaseRuns, rows: Sequence[ReleaseRow], *, command: str, version: str, complete: bool
) -> ReleaseHistory:
    """Return the history of the releases that ran."""
    stored = [results for row in rows if (results := runs.results(row.version)) is not None]
    workers = dict.fromkeys(results.engine.worker for results in stored if results.engine is not None)
    return ReleaseHistory(
        engine=next((one.engine.name for one in stored if one.engine is not None), runs.engine.name),
        worker=", ".join(workers),
        profile=", ".join(dict.fromkeys(results.profile for results in stored)),
        command=command,
        coldproof_version=version,
        requirements=heads(stored),
        releases=list(rows),
        complete=complete,
    )


def relative(folder: Path, out: Path) -> str:
    """Return a folder's path from `out`."""
    return folder.relative_to(out).as_posix()


def interpreters(words: Sequence[str]) -> dict[str, Path]:
    """Return the interpreters that the user gives as RELEASE=PATH. Raises UsageError."""
    found = {}
    for word in words:
        release, mark, path = word.partition("=")
        if not mark or not Path(path).is_file():
            raise UsageError(f"--python {word}: give RELEASE=PATH, with the path of a Python interpreter")
        found[release] = Path(os.path.abspath(path))  # a link into an environment stays one
    return found


def package_folders(words: Sequence[str]) -> tuple[tuple[str, Path], ...]:
    """Return the folders that the user gives as RELEASES=FOLDER. Raises UsageError."""
    found = []
    for word in words:
        releases, mark, path = word.partition("=")
        if not mark or not Path(path).is_dir():
            raise UsageError(
                f"--packages {word}: give RELEASES=FOLDER, with a folder that pip install --target has made"
            )
        is_among("0", releases)  # raises UsageError for what is no version
        found.append((releases, Path(path).resolve()))
    return tuple(found)
