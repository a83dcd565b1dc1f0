"""Checks what is true of the events of every run: their numbers, their order, and their times.

Times are compared with a tolerance: the clock of a machine may be set while a run lasts.
"""

from __future__ import annotations

import datetime
import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator

from packaging.utils import canonicalize_name

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.registry import ENGINES
from coldproof.harness.event_log import CONFIRMING
from coldproof.harness.release.bundle.refusal import Reason, altered, left_out, not_accepted
from coldproof.harness.release.bundle.run_folder import Line, Part
from coldproof.harness.schema.verdict import Verdict
from coldproof.reports.assemble.unreadable_events import missing_numbers

CLOCK_SECONDS = 5.0  # by which a clock may be set back while a run lasts
SETUP_SECONDS = 600.0  # from the start of a run to its first event: it asks git, which a busy machine delays
CLOCK = "the clock may have been set"
ONCE = ("run_started", "run_finished", "qualification", "waivers", "records", "states")
Trial = tuple[str, str]  # a requirement and a cell: what the event that begins a trial names


def check_events(part: Part) -> Iterator[Reason]:
    """Yield a reason for each thing that no run writes in this way."""
    lines: dict[str, list[Line]] = defaultdict(list)
    for line in part.lines:
        lines[line.process].append(line)
    yield from check_once(part)
    yield from check_stamp_of_start(part)
    for own in lines.values():
        yield from check_numbers(part, own)
        yield from check_clock(part, own)
        yield from check_trials(own)
    yield from check_versions(part)


def check_once(part: Part) -> Iterator[Reason]:
    """Yield a reason for each event that a run writes once and that is there several times."""
    counted = Counter(line.event for line in part.lines)
    for kind in ONCE:
        if counted[kind] > 1:
            yield altered(f"{part.name}: the event '{kind}' is there {counted[kind]} times; a run writes it once")


def check_numbers(part: Part, lines: list[Line]) -> Iterator[Reason]:
    """Yield a reason for events of one process that are missing, or that were added."""
    counted = Counter(line.number for line in lines)
    numbers = {number for number in counted if number >= 0}
    if missing := missing_numbers(numbers):
        first = next(number for number in itertools.count() if number not in numbers)
        yield left_out(f"{part.name}: {missing} events of a process are missing, the first is number {first}")
    twice = sorted(number for number, times in counted.items() if times > 1 or number < 0)
    if twice:
        yield altered(f"{part.name}: {len(twice)} numbers of events of a process are there twice, such as {twice[0]}")


def check_stamp_of_start(part: Part) -> Iterator[Reason]:
    """Yield a reason if the time of the first event is not that at which the run says that it started."""
    try:
        said = datetime.datetime.fromisoformat(str(part.started.get("started", ""))).timestamp()
    except ValueError:
        yield altered(f"{part.name}: the start of the run has no valid time")
        return
    after = part.started["at"] - said
    if not -CLOCK_SECONDS <= after <= SETUP_SECONDS:
        at = datetime.datetime.fromtimestamp(part.started["at"], datetime.UTC)
        yield altered(
            f"{part.name}: it says that it started at {part.started['started']}, but its first event is from "
            f"{at:%Y-%m-%dT%H:%M:%S}+00:00"
        )


def check_clock(part: Part, lines: list[Line]) -> Iterator[Reason]:
    """Yield a reason if the times of one process go back, or are too short for the trials that it measured."""
    back = max((before.at - after.at for before, after in itertools.pairwise(lines)), default=0.0)
    if back > CLOCK_SECONDS:
        yield not_accepted(f"{part.name}: the times of its events go back by {back:.0f} s: {CLOCK}")
    span = lines[-1].at - lines[0].at
    measured = sum(line.seconds for line in lines if line.event == "verdict")
    if measured > span + CLOCK_SECONDS:
        yield not_accepted(f"{part.name}: its trials took {measured:.0f} s, but its events span {span:.0f} s: {CLOCK}")


def check_trials(lines: list[Line]) -> Iterator[Reason]:
    """Yield a reason for examples outside their trial, and for a confirmed counterexample that no verdict has."""
    current: Trial | None = None
    begun, confirming, outside = 0.0, False, Counter[Trial]()
    for line in lines:
        place = (line.requirement, line.cell)
        if line.event == "trial":
            current, begun, confirming = place, line.at, False
        elif line.event == "phase":
            confirming = confirming or line.stage == CONFIRMING
        elif line.event == "example":
            outside[place] += place != current
        elif line.event == "verdict" and place == current:
            yield from check_end(line, begun, confirming=confirming)
            current = None
    for (requirement, cell), count in sorted(outside.items()):
        if count:
            yield altered(f"{requirement} in {cell}: {count} examples were not written during its trial")


def check_end(verdict: Line, begun: float, *, confirming: bool) -> Iterator[Reason]:
    """Yield a reason if a verdict does not fit the events of its trial."""
    what = f"{verdict.requirement} ({verdict.test}) in {verdict.cell}"
    if confirming and verdict.case is None and verdict.verdict != Verdict.ERROR:
        yield altered(f"{what}: a counterexample was being confirmed, but its verdict names no case")
    if verdict.at - begun < verdict.seconds - CLOCK_SECONDS:
        yield not_accepted(
            f"{what}: its trial took {verdict.seconds:.0f} s, but its events span {verdict.at - begun:.0f} s: {CLOCK}"
        )


def check_versions(part: Part) -> Iterator[Reason]:
    """Yield a reason if the engine's version is not the same wherever it is recorded."""
    engines = [engine for engines in part.engines().values() for engine in engines]
    versions = {engine.engine.version for engine in engines}
    for engine in engines:
        reported = engine.engine.capabilities[Capability.VERSION]
        if engine.engine.version is not None and not reported.evidence.endswith(engine.engine.version):
            yield altered(
                f"{part.name}: the engine's version is recorded as {engine.engine.version}, but it reported "
                f"'{reported.evidence}'"
            )
    for case in part.cases().values():
        if case.engine_version not in versions:
            yield altered(f"case {case.id} is of version {case.engine_version}, the engine is {texts_of(versions)}")
    yield from check_build(part, versions)


def check_build(part: Part, versions: set[str | None]) -> Iterator[Reason]:
    """Yield a reason if the engine is of another version than its package, for engines that Coldproof starts."""
    made = part.qualification
    spec = ENGINES.get(made.engine) if made is not None else None
    if made is None or spec is None or made.attached or not spec.packages:
        return
    names = {canonicalize_name(name) for name in spec.packages}
    built = {package.version for package in made.build if canonicalize_name(package.name) in names}
    for version in sorted(filter(None, versions)):
        if built and version not in built:
            yield altered(f"{part.name}: the engine's version is {version}, its package is {texts_of(built)}")


def texts_of(versions: Collection[str | None]) -> str:
    """Return versions as text."""
    return ", ".join(sorted(str(version) for version in versions)) or "never opened"
