"""What came of each bug: on the release that had it, planted again, or as a finding that is open."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import msgspec
from bug_list import Bug, read_bugs, read_notes
from bug_runs import NAMED, Counterexample, PlantedRun, Run, failure_of

from coldproof.harness.options import SMOKE
from coldproof.harness.schema.verdict import Verdict

CONCLUDED = (Verdict.CONFORMS, Verdict.KNOWN_ISSUE, Verdict.VIOLATED)


class Outcome(Enum):
    """What came of a bug."""

    DETECTED = "detected"
    NAMED = "detected where its cells are named"
    BOTH = "violated before and after"
    MISSED = "missed"
    WAITING = "not run yet"
    CANNOT = "cannot act here"


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """A bug with its outcome.

    `found`: requirement -> the counterexample of the release before the fix, or of the cause. `again`: the run with the
    planted bug that says most.
    """

    bug: Bug
    outcome: Outcome
    found: dict[str, Counterexample] = {}
    again: PlantedRun | None = None


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


def result(runs: Sequence[Run], bug: Bug, others: tuple[str, ...] = (), planted: Sequence[PlantedRun] = ()) -> Result:
    """Return the outcome of a bug: on its release, or else planted again.

    `others`: how the sentences of counterexamples begin that are known to be of other causes.
    """
    on_release = of_finding(runs, bug) if bug.finding else of_release(runs, bug, others)
    if on_release.outcome is Outcome.DETECTED or not bug.planted:
        return on_release
    again = of_planted(bug, [run for run in planted if run.fault == bug.planted])
    unknown = again.outcome is Outcome.WAITING and on_release.outcome is not Outcome.CANNOT
    return on_release if unknown else again


def of_finding(runs: Sequence[Run], bug: Bug) -> Result:
    """Return the outcome of a bug that is open: whether the repair of its finding ends a case."""
    here = [run for run in runs if (run.engine, run.release) == (bug.engine, bug.before)]
    cases = [(name, case) for run in here for name, one in run.verdicts.items() for case in one.cases]
    found = {name: case for name, case in cases if bug.finding in case.causes}
    outcome = Outcome.DETECTED if found else Outcome.MISSED if here else Outcome.WAITING
    return Result(bug=bug, outcome=outcome, found=found)


def of_planted(bug: Bug, runs: Sequence[PlantedRun]) -> Result:
    """Return the outcome of a bug that is planted again. A violation is its effect only if the run has seen it act."""
    detected = [run for run in runs if run.requirement and run.acted]
    by_default = [run for run in detected if run.profile != NAMED]
    named = [run for run in detected if run.profile == NAMED]
    if by_default:
        return Result(bug=bug, outcome=Outcome.DETECTED, again=min(by_default, key=lambda run: run.profile != SMOKE))
    if named:
        return Result(bug=bug, outcome=Outcome.NAMED, again=named[0])
    ended = [run for run in runs if not run.problem]
    return Result(bug=bug, outcome=Outcome.MISSED if ended else Outcome.WAITING, again=ended[-1] if ended else None)


def of_release(runs: Sequence[Run], bug: Bug, others: tuple[str, ...]) -> Result:
    """Return the outcome on the releases. A bug is missed if all of its requirements were tested, or there is none."""
    if bug.cannot:
        return Result(bug=bug, outcome=Outcome.CANNOT)
    if not bug.before:
        return Result(bug=bug, outcome=Outcome.WAITING)
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


def outcomes(runs: Sequence[Run], planted: Sequence[PlantedRun]) -> list[Result]:
    """Return the outcome of each bug of the list."""
    notes = read_notes()
    others = {bug: tuple(note.others) for bug, note in notes.items()}
    return [result(runs, bug, others.get(bug.id, ()), planted) for bug in read_bugs()]
