"""How a run went, arranged for drawing: what it had seen by when, and where its time went.

Pure functions of the results; geometry is in the units of the drawings' own view boxes.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass

from reports.growth import in_words
from reports.schema import EngineLoss, Growth, ProgressPoint, RequirementResult, Results
from reports.text import duration, listed

WIDTH, HEIGHT = 320.0, 88.0  # of one panel's plot
PANELS: tuple[tuple[str, str, Callable[[ProgressPoint], float]], ...] = (
    ("Examples", "workloads drawn and run", lambda point: point.examples),
    ("Hit tokens", "prompt tokens that came from the cache", lambda point: point.hit_tokens),
    ("Telling chances", "requests whose answer a wrong hit would have changed", lambda point: point.telling),
    ("Evicted tokens", "prompt tokens that had been computed and were gone", lambda point: point.evicted_tokens),
    ("Preemptions", "requests that the engine put back", lambda point: point.preemptions),
    ("Failing examples", "those tried while minimising among them", lambda point: point.failing),
)


@dataclass(frozen=True, slots=True)
class Panel:
    """One counter over the run's time: a line that only rises, and the area under it."""

    title: str
    meaning: str
    total: float
    line: str
    area: str
    losses: tuple[float, ...]  # where an engine was lost


@dataclass(frozen=True, slots=True)
class Held:
    """What a process held over a soak: a line from nothing up to the most it ever held."""

    process: str
    what: str
    said: str
    grows: bool | None
    line: str


@dataclass(frozen=True, slots=True)
class Span:
    """Some of the run's time: a requirement's, or one kind of work's. Shares are of the longest one, in percent."""

    name: str
    title: str
    seconds: float
    drawn: float
    share: float
    drawn_share: float


@dataclass(frozen=True, slots=True)
class RunView:
    """All that the run's section shows beside the results themselves."""

    panels: list[Panel]
    until: float
    spans: list[Span]
    work: list[Span]
    starts: str
    repeat: str
    held: list[Held]


def run_view(results: Results) -> RunView:
    """The section's pictures and sentences."""
    until = max([results.duration_s, *(point.at for point in results.progress)])
    return RunView(
        panels=panels(results.progress, results.losses, until),
        until=until,
        spans=spans(results.requirements),
        work=work(results),
        starts=starts_in_words(results.timing.engine_start, results.losses),
        repeat=repeat_command(results),
        held=[held(one, until) for one in results.growth],
    )


def panels(points: list[ProgressPoint], losses: list[EngineLoss], until: float) -> list[Panel]:
    """One for each counter, on one axis of time; none where nothing was recorded."""
    if not points or until <= 0:
        return []
    lost = tuple(_x(loss.at, until) for loss in losses)
    return [_panel(title, meaning, [(p.at, value(p)) for p in points], lost, until) for title, meaning, value in PANELS]


def _panel(title: str, meaning: str, values: list[tuple[float, float]], lost: tuple[float, ...], until: float) -> Panel:
    total = values[-1][1]
    line = "M0 " + _y(0, total)
    for at, value in values:  # a counter keeps its value until the next example has ended
        line += f"H{_x(at, until):g}V{_y(value, total)}"
    line += f"H{WIDTH:g}"
    return Panel(title, meaning, total, line, f"{line}V{HEIGHT:g}H0Z", lost)


def held(one: Growth, until: float) -> Held:
    """One process's line, on the run's axis of time."""
    most = max(point.value for point in one.points)
    line = " ".join(
        f"{'L' if i else 'M'}{_x(point.at, until):g} {_y(point.value, most)}" for i, point in enumerate(one.points)
    )
    return Held(one.process, one.what, in_words(one), one.grows, line)


def _x(at: float, until: float) -> float:
    return round(WIDTH * min(max(at / until, 0.0), 1.0), 1)


def _y(value: float, total: float) -> str:
    return f"{HEIGHT - (HEIGHT - 4) * value / total if total else HEIGHT:.1f}"


def spans(requirements: list[RequirementResult]) -> list[Span]:
    """Each requirement's time over all cells, longest first; what is not drawing is minimising and confirming."""
    rows = [
        (one.id, one.title, sum(cell.seconds for cell in one.cells), sum(cell.drawn for cell in one.cells))
        for one in requirements
    ]
    return _spans(sorted((row for row in rows if row[2]), key=lambda row: (-row[2], row[0])))


def work(results: Results) -> list[Span]:
    """The time by kind of work. Parallel workers may do more than the run lasted; then nothing is left for the rest."""
    cells = [cell for requirement in results.requirements for cell in requirement.cells]
    drawing = sum(min(cell.drawn, cell.seconds) for cell in cells)
    proving = sum(cell.seconds for cell in cells) - drawing
    rest = max(0.0, results.duration_s - drawing - proving)
    return _spans(
        [
            ("Drawing and running examples", "", drawing, drawing),
            ("Minimising, confirming, controls", "", proving, 0.0),
            ("Starting engines, calibration and the rest", "", rest, 0.0),
        ]
    )


def _spans(rows: list[tuple[str, str, float, float]]) -> list[Span]:
    longest = max((seconds for _, _, seconds, _ in rows), default=0.0) or 1.0
    return [
        Span(name, title, seconds, drawn, _percent(seconds / longest), _percent(min(drawn, seconds) / longest))
        for name, title, seconds, drawn in rows
    ]


def _percent(share: float) -> float:
    return round(100 * share, 1)


def starts_in_words(starts: list[float], losses: list[EngineLoss]) -> str:
    """How many engines were started, how long that took, and how many were lost on the way."""
    if not starts:
        return "none was started" if not losses else f"not recorded; {_lost(losses)}"
    took = duration(starts[0]) if len(starts) == 1 else f"{duration(min(starts))} to {duration(max(starts))} each"
    return f"{len(starts)}, {took}; {_lost(losses)}"


def _lost(losses: list[EngineLoss]) -> str:
    if not losses:
        return "none was lost"
    cells = listed(list(dict.fromkeys(loss.cell for loss in losses)))
    return f"{len(losses)} lost and started again, in {cells}"


def repeat_command(results: Results) -> str:
    """The command of the run with the seed that it drew, so that the same examples are drawn again."""
    if results.fleet or "--hypothesis-seed" in results.command:  # a fleet's seeds stand in its matrix
        return results.command
    return f"{results.command} --hypothesis-seed={shlex.quote(results.seed)}"
