"""From measurements to the curve: all thresholds made smaller or larger by one factor, from many alarms to few catches.

The operating point is where the factor is 1: the band as the calibration states it.
"""

from __future__ import annotations

from reports.noise_schema import FACTORS, CleanLevel, Curve, FaultLevel, NoisyFault, Point


def curves(clean: list[CleanLevel], faults: list[FaultLevel]) -> list[Curve]:
    """One for each level of noise at which both were measured."""
    made = []
    for level in faults:
        mine = [one for one in clean if (one.worker, one.noise) == (level.worker, level.noise) and one.band is not None]
        if mine and level.faults:
            points = [point(factor, i, mine, level.faults) for i, factor in enumerate(FACTORS)]
            made.append(Curve(worker=level.worker, noise=level.noise, points=points))
    return made


def point(factor: float, index: int, clean: list[CleanLevel], faults: list[NoisyFault]) -> Point:
    """One place of a curve."""
    return Point(
        factor=factor,
        alarms=sum(max(one.over[index], one.alarms_without_threshold) for one in clean),
        requests=sum(one.requests for one in clean),
        caught=sum(is_caught(fault, factor) for fault in faults),
        faults=len(faults),
    )


def is_caught(fault: NoisyFault, factor: float) -> bool:
    """Whether a fault is caught with all thresholds times a factor. With larger ones no more than at the operating
    point; with smaller ones also what acted and strayed far enough for them, if only by noise.
    """
    strays = fault.acted and fault.excess > factor
    if factor < 1:
        return fault.caught or strays
    return fault.caught and (factor == 1 or strays or fault.needs_no_threshold)
