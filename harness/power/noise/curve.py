"""Computes the curve of detected faults against false positives: all thresholds are multiplied by one factor.

The operating point has the factor 1: the noise tolerance of the calibration.
"""

from __future__ import annotations

from coldproof.harness.schema.noise import FACTORS, CleanLevel, Curve, FaultLevel, NoisyFault, Point


def detection_curves(clean: list[CleanLevel], faults: list[FaultLevel]) -> list[Curve]:
    """Return one curve for each level of noise that was measured both with and without faults."""
    made = []
    for level in faults:
        mine = [one for one in clean if (one.worker, one.noise) == (level.worker, level.noise) and one.band is not None]
        if mine and level.faults:
            points = [curve_point(factor, i, mine, level.faults) for i, factor in enumerate(FACTORS)]
            made.append(Curve(worker=level.worker, noise=level.noise, points=points))
    return made


def curve_point(factor: float, index: int, clean: list[CleanLevel], faults: list[NoisyFault]) -> Point:
    """Return the point of a curve at a factor; `index` is its place in FACTORS."""
    return Point(
        factor=factor,
        alarms=sum(max(one.over[index], one.alarms_without_threshold) for one in clean),
        requests=sum(one.requests for one in clean),
        caught=sum(is_detected(fault, factor) for fault in faults),
        faults=len(faults),
    )


def is_detected(fault: NoisyFault, factor: float) -> bool:
    """Return whether a fault is detected with all thresholds multiplied by a factor.

    A factor above 1 detects no more than the operating point. A factor below 1 also detects a fault that acted and
    whose largest deviation exceeds the smaller tolerance, even if only by noise.
    """
    exceeds = fault.acted and fault.excess > factor
    if factor < 1:
        return fault.caught or exceeds
    return fault.caught and (factor == 1 or exceeds or fault.needs_no_threshold)
