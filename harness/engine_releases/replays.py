"""Replays one case on several releases of its engine: which is the first that fails, and which the last."""

from __future__ import annotations

from pathlib import Path

import msgspec

from coldproof.harness.case.load import load_case
from coldproof.harness.case.replay_command import replay_options
from coldproof.harness.engine_releases.environment import NoEnvironment
from coldproof.harness.engine_releases.release_runs import ReleaseRuns, finished, run_suites
from coldproof.harness.schema.verdict import Verdict

FAILS = (Verdict.VIOLATED, Verdict.KNOWN_ISSUE)


class Replay(msgspec.Struct, frozen=True):
    """A case on one release. `fails`: None if that could not be found out. `words`: what happened."""

    version: str
    fails: bool | None
    words: str


def replayed(runs: ReleaseRuns, case: Path, version: str) -> Replay:
    """Replay a case on one release, or read what an earlier replay found."""
    folder = runs.out / "replays" / case.stem / version
    results = finished(folder)
    if results is None:
        options = options_of(case)  # before an environment is made
        try:
            python = runs.python(version)
        except NoEnvironment as problem:
            return Replay(version, None, f"not installed: {problem}")
        words = runs.words(folder, "replay", str(case.absolute()), *options)
        ended = run_suites([str(python), *words], folder, runs.seconds)
        results = finished(folder)
        if results is None:
            return Replay(version, None, ended)
    verdict = next((one for one in results.requirements), None)
    if verdict is None or verdict.verdict not in (*FAILS, Verdict.CONFORMS):
        return Replay(version, None, f"{verdict.verdict.value}: {verdict.reason}" if verdict else "nothing was tested")
    fails = verdict.verdict in FAILS
    return Replay(version, fails, f"fails: {verdict.reason}" if fails else "does not fail")


def options_of(file: Path) -> list[str]:
    """Return the options that the replay of a case needs, such as its worker. Raises UsageError if it is none."""
    case, _ = load_case(file, follow=True)
    return replay_options(case.layer, case.oracle, case.engine_config)


def summary(replays: list[Replay]) -> str:
    """Return the first and the last release that fails, in words. The releases are in order."""
    tested = [one for one in replays if one.fails is not None]
    if not tested:
        return "the case could not be tested on any of these releases"
    failing = [one.version for one in tested if one.fails]
    if not failing:
        return f"the case fails on none of {len(tested)} tested releases"
    places = [place for place, one in enumerate(tested) if one.fails]
    gaps = any(not one.fails for one in tested[places[0] : places[-1]])
    before, after = tested[: places[0]][-1:], tested[places[-1] + 1 :][:1]
    return "; ".join(
        [
            f"first failing release: {failing[0]}" + (f" ({before[0].version} does not fail)" if before else ""),
            f"last failing release: {failing[-1]}" + (f" ({after[0].version} does not fail)" if after else ""),
            *(["releases between them do not fail"] if gaps else []),
        ]
    )
