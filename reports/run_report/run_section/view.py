"""The view of a run: coverage over time, time by activity and resource usage.

Pure functions of the results. Coordinates are in the units of each chart's view box.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass

from coldproof.harness.schema.evidence import ReportedEvidence
from coldproof.harness.schema.results import EngineLoss, Growth, ProgressPoint, RequirementResult, Results
from coldproof.reports.assemble.over_time import growth_text
from coldproof.reports.format.text import duration, listed

WIDTH, HEIGHT = 320.0, 88.0  # of one panel's plot
PANELS: tuple[tuple[str, str, Callable[[ProgressPoint], float]], ...] = (
    ("Examples", "workloads generated and run", lambda point: point.examples),
    ("Hit tokens", "prompt tokens read from the cache", lambda point: point.hit_tokens),
    ("Discriminating requests", ReportedEvidence.DISCRIMINATING.value, lambda point: point.discriminating),
    ("Evicted tokens", "cached prompt tokens that were evicted", lambda point: point.evicted_tokens),
    ("Preemptions", "requests preempted by the engine", lambda point: point.preemptions),
    ("Failing examples", "including those of minimisation", lambda point: point.failing),
)


@dataclass(frozen=True, slots=True)
class Panel:
    """A chart of one cumulative counter: a line and the area under it."""

    title: str
    meaning: str
    total: float
    line: str
    area: str
    losses: tuple[float, ...]  # the x positions of engine losses


@dataclass(frozen=True, slots=True)
class ResourceCurve:
    """A chart of one resource of one process, from zero to the maximum. `text`: the growth in words."""

    process: str
    what: str
    text: str
    grows: bool | None
    line: str


@dataclass(frozen=True, slots=True)
class TimeBar:
    """The time of a requirement or of one kind of work. The shares are in percent of the longest one."""

    name: str
    title: str
    seconds: float
    drawn: float
    share: float
    drawn_share: float


def run_view(results: Results) -> dict[str, object]:
    """Return the charts and texts of the run's section, by the names that its templates use."""
    until = time_axis(results)
    return {
        "panels": panels(results),
        "until": until,
        "spans": time_by_requirement(results.requirements),
        "work": time_by_work(results),
        "starts": engine_starts(results.timing.engine_start, results.losses),
        "repeat": repeat_command(results),
        "resources": [resource_curve(one, until) for one in results.growth],
    }


def time_axis(results: Results) -> float:
    """Return the seconds at which the time axis of the charts ends."""
    return max([results.duration_s, *(point.at for point in results.progress)])


def panels(results: Results) -> list[Panel]:
    """Return one chart for each counter, all with the same time axis; none if no progress was recorded."""
    points, until = results.progress, time_axis(results)
    if not points or until <= 0:
        return []
    lost = tuple(_x(loss.at, until) for loss in results.losses)
    return [_panel(title, meaning, [(p.at, value(p)) for p in points], lost, until) for title, meaning, value in PANELS]


def _panel(title: str, meaning: str, values: list[tuple[float, float]], lost: tuple[float, ...], until: float) -> Panel:
    total = values[-1][1]
    line = "M0 " + _y(0, total)
    for at, value in values:  # a counter keeps its value until the next example has ended
        line += f"H{_x(at, until):g}V{_y(value, total)}"
    line += f"H{WIDTH:g}"
    return Panel(title, meaning, total, line, f"{line}V{HEIGHT:g}H0Z", lost)


def resource_curve(one: Growth, until: float) -> ResourceCurve:
    """Return the chart of one resource, on the time axis of the run."""
    most = max(point.value for point in one.points)
    line = " ".join(
        f"{'L' if i else 'M'}{_x(point.at, until):g} {_y(point.value, most)}" for i, point in enumerate(one.points)
    )
    return ResourceCurve(one.process, one.what, growth_text(one), one.grows, line)


def _x(at: float, until: float) -> float:
    return round(WIDTH * min(max(at / until, 0.0), 1.0), 1)


def _y(value: float, total: float) -> str:
    return f"{HEIGHT - (HEIGHT - 4) * value / total if total else HEIGHT:.1f}"


def time_by_requirement(requirements: list[RequirementResult]) -> list[TimeBar]:
    """Return the time of each requirement over all cells, longest first. The rest is minimisation and confirmation."""
    rows = [
        (one.id, one.title, sum(cell.seconds for cell in one.cells), sum(cell.drawn for cell in one.cells))
        for one in requirements
    ]
    return _spans(sorted((row for row in rows if row[2]), key=lambda row: (-row[2], row[0])))


def time_by_work(results: Results) -> list[TimeBar]:
    """Return the time by kind of work. Parallel workers can exceed the run's duration; then the rest is zero."""
    cells = [cell for requirement in results.requirements for cell in requirement.cells]
    drawing = sum(min(cell.drawn, cell.seconds) for cell in cells)
    proving = sum(cell.seconds for cell in cells) - drawing
    rest = max(0.0, results.duration_s - drawing - proving)
    return _spans(
        [
            ("Generating and running examples", "", drawing, drawing),
            ("Minimisation, confirmation, controls", "", proving, 0.0),
            ("Engine starts, calibration, other", "", rest, 0.0),
        ]
    )


def _spans(rows: list[tuple[str, str, float, float]]) -> list[TimeBar]:
    longest = max((seconds for _, _, seconds, _ in rows), default=0.0) or 1.0
    return [
        TimeBar(name, title, seconds, drawn, _percent(seconds / longest), _percent(min(drawn, seconds) / longest))
        for name, title, seconds, drawn in rows
    ]


def _percent(share: float) -> float:
    return round(100 * share, 1)


def engine_starts(starts: list[float], losses: list[EngineLoss]) -> str:
    """Return as text how many engines were started, how long that took, and how many were lost."""
    if not starts:
        return "none" if not losses else f"not recorded; {_lost(losses)}"
    took = duration(starts[0]) if len(starts) == 1 else f"{duration(min(starts))} to {duration(max(starts))} each"
    return f"{len(starts)}, {took}; {_lost(losses)}"


def _lost(losses: list[EngineLoss]) -> str:
    if not losses:
        return "none lost"
    cells = listed(list(dict.fromkeys(loss.cell for loss in losses)))
    return f"{len(losses)} lost and restarted, in {cells}"


def repeat_command(results: Results) -> str:
    """Return the command of the run with its seed, so that it generates the same examples."""
    if results.fleet or "--hypothesis-seed" in results.command:  # a fleet's seeds are in its matrix
        return results.command
    return f"{results.command} --hypothesis-seed={shlex.quote(results.seed)}"
