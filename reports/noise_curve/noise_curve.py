"""Renders curve.json as one self-contained page: false positives against detected faults, and the operating point."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from coldproof.harness.schema.noise import Curve, NoiseResults, Point
from coldproof.harness.schema.power import Outcome
from coldproof.reports.page.environment import PageTemplates

LEFT, RIGHT, TOP, BOTTOM = 90.0, 800.0, 20.0, 300.0
MIN_RATE = 1e-6  # false positives per request; smaller rates are drawn at the left edge, labelled "none"
NEVER_ACTED = Outcome.NEVER_ACTED.value
RULE_OF_THREE = 3.0  # none in n requests: the rate is below 3/n with 95 % confidence


@dataclass(frozen=True, slots=True)
class PlotPoint:
    """One drawn point of a curve; x and y in SVG units."""

    x: float
    y: float
    operating: bool
    title: str


@dataclass(frozen=True, slots=True)
class CurveDrawing:
    """One drawn curve."""

    name: str
    line: str
    dots: list[PlotPoint]
    tone: int


def detected_share(point: Point) -> float:
    """Return the share of faults that are detected."""
    return point.caught / point.faults if point.faults else 0.0


def upper_bound(alarms: int, requests: int) -> float:
    """Return the upper 95 % confidence bound of the false-positive rate."""
    if alarms == 0:
        return RULE_OF_THREE / requests if requests else 1.0
    return min(1.0, (alarms + 1.96 * math.sqrt(alarms) + 1.92) / requests)


def curve_drawing(curve: Curve, number: int) -> CurveDrawing:
    """Return the geometry of a curve."""
    dots = [plot_point(point) for point in curve.points]
    line = " ".join(f"{one.x},{one.y}" for one in dots)
    return CurveDrawing(f"{curve.noise}, {curve.worker} worker", line, dots, number % 6)


def plot_point(point: Point) -> PlotPoint:
    """Return the drawn point. x: false-positive rate on a logarithmic axis; y: share of detected faults."""
    rate = max(MIN_RATE, point.alarms / point.requests if point.requests else 0.0)
    x = LEFT + (RIGHT - LEFT) * math.log10(rate / MIN_RATE) / -math.log10(MIN_RATE)
    y = BOTTOM - (BOTTOM - TOP) * detected_share(point)
    words = (
        f"thresholds x {point.factor:g}: {point.alarms} false positives in {point.requests} requests, "
        f"{point.caught} of {point.faults} faults detected"
    )
    return PlotPoint(round(x, 1), round(y, 1), point.factor == 1.0, words)


def ticks() -> list[tuple[float, str]]:
    """Return the positions and labels of the false-positive axis."""
    powers = range(round(math.log10(MIN_RATE)), 1)
    step = (RIGHT - LEFT) / -math.log10(MIN_RATE)
    return [
        (round(LEFT + step * i, 1), "none" if i == 0 else f"1 in {10**-power:,}" if power else "all")
        for i, power in enumerate(powers)
    ]


def headline(results: NoiseResults) -> str:
    """Return the measurement in one sentence that can be quoted."""
    requests = sum(level.requests for level in results.clean)
    alarms = sum(level.alarms for level in results.clean)
    text = f"{alarms} false positives in {requests:,} noisy requests without a fault"
    for level in results.faults:
        caught = sum(row.caught for row in level.faults)
        of = "" if len(level.faults) == level.of else f" (of {level.of}; the others are not measured yet)"
        silent = sum(row.outcome == NEVER_ACTED for row in level.faults)
        text += (
            f"; {caught} of {len(level.faults)} faults{of} detected under {level.noise} with the {level.worker} worker"
        )
        text += f", {silent} others never acted within {level.budget:g} s" if silent else ""
    return text


TEMPLATES = PageTemplates(folders=(Path(__file__).parent / "templates",))


def render_noise(results: NoiseResults) -> str:
    """Return the curves as one HTML document. Reads only templates, and no clock."""
    made = [curve_drawing(curve, number) for number, curve in enumerate(results.curves)]
    return TEMPLATES.page(
        "noise_curve.html.j2",
        styles=("style.css", "noise_curve.css"),
        results=results,
        headline=headline(results),
        drawn=made,
        ticks=ticks(),
        left=LEFT,
        right=RIGHT,
        top=TOP,
        bottom=BOTTOM,
        share=detected_share,
        at_most=upper_bound,
    )
