"""curve.json in, one self-contained page out: false alarms against caught faults, and the operating point.

Everything shown passes through the report's own environment, which escapes it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from reports.noise_schema import CleanLevel, Curve, FaultLevel, NoiseResults, NoisyFault, Point
from reports.power_schema import Outcome
from reports.render import own, page

LEFT, RIGHT, TOP, BOTTOM = 90.0, 800.0, 20.0, 300.0
FEWEST = 1e-6  # alarms a request: what lies further left stands at the left edge, as "none seen"
NEVER_ACTED = Outcome.NEVER_ACTED.value
RULE_OF_THREE = 3.0  # none in n requests: with 95 % confidence fewer than three in n


@dataclass(frozen=True, slots=True)
class Dot:
    """One point of a curve as drawn."""

    x: float
    y: float
    operating: bool
    title: str


@dataclass(frozen=True, slots=True)
class Drawn:
    """One curve as drawn."""

    name: str
    line: str
    dots: list[Dot]
    operating: Point
    tone: int


def share(point: Point) -> float:
    """Of the faults, what is caught."""
    return point.caught / point.faults if point.faults else 0.0


def alarm_rate(point: Point) -> float:
    """False alarms a request."""
    return point.alarms / point.requests if point.requests else 0.0


def at_most(alarms: int, requests: int) -> float:
    """The upper end (95 %) of the rate that so few alarms stand for."""
    if alarms == 0:
        return RULE_OF_THREE / requests if requests else 1.0
    return min(1.0, (alarms + 1.96 * math.sqrt(alarms) + 1.92) / requests)


def drawn(curve: Curve, number: int) -> Drawn:
    """The geometry of a curve."""
    dots = [dot(point) for point in curve.points]
    operating = next(point for point in curve.points if point.factor == 1.0)
    line = " ".join(f"{one.x},{one.y}" for one in dots)
    return Drawn(f"{curve.noise}, {curve.worker} worker", line, dots, operating, number % 6)


def dot(point: Point) -> Dot:
    """Alarms to the right, on a logarithmic axis; caught faults upwards."""
    rate = max(FEWEST, alarm_rate(point))
    x = LEFT + (RIGHT - LEFT) * math.log10(rate / FEWEST) / -math.log10(FEWEST)
    y = BOTTOM - (BOTTOM - TOP) * share(point)
    words = (
        f"thresholds x {point.factor:g}: {point.alarms} alarms in {point.requests} requests, "
        f"{point.caught} of {point.faults} faults"
    )
    return Dot(round(x, 1), round(y, 1), point.factor == 1.0, words)


def ticks() -> list[tuple[float, str]]:
    """Places on the axis of alarms."""
    powers = range(round(math.log10(FEWEST)), 1)
    step = (RIGHT - LEFT) / -math.log10(FEWEST)
    return [
        (round(LEFT + step * i, 1), "none seen" if i == 0 else f"1 in {10**-power:,}" if power else "all")
        for i, power in enumerate(powers)
    ]


def missed(level: FaultLevel) -> list[NoisyFault]:
    """What was not caught, the furthest strays first."""
    return sorted((row for row in level.faults if not row.caught), key=lambda row: -row.excess)


def headline(results: NoiseResults) -> str:
    """The measurement in one sentence that a person can quote."""
    requests = sum(level.requests for level in results.clean)
    alarms = sum(level.alarms for level in results.clean)
    said = f"{alarms} false alarms in {requests:,} clean noisy requests"
    for level in results.faults:
        caught = sum(row.caught for row in level.faults)
        of = "" if len(level.faults) == level.of else f" (of {level.of}; the rest is not measured yet)"
        silent = sum(row.outcome == NEVER_ACTED for row in level.faults)
        said += (
            f"; {caught} of {len(level.faults)} faults{of} caught under {level.noise} with the {level.worker} worker"
        )
        said += f", {silent} of the others never acted in {level.budget:g} s" if silent else ""
    return said


def render_noise(results: NoiseResults) -> str:
    """The curve as one HTML document. Reads its own templates, and no clock."""
    made = [drawn(curve, number) for number, curve in enumerate(results.curves)]
    return page(
        "noise.html.j2",
        own("style.css") + own("noise.css"),
        results=results,
        headline=headline(results),
        drawn=made,
        ticks=ticks(),
        left=LEFT,
        right=RIGHT,
        top=TOP,
        bottom=BOTTOM,
        share=share,
        at_most=at_most,
        missed=missed,
        complete=is_complete,
    )


def is_complete(level: FaultLevel) -> bool:
    """Whether all faults were measured."""
    return len(level.faults) == level.of


__all__ = ["CleanLevel", "headline", "render_noise"]
