"""The schema of curve.json: false positives and detected faults with noisy scores. Written by `harness/power/noise`."""

from __future__ import annotations

import msgspec

from coldproof.harness.schema.case import NoiseBand

NOISE_SCHEMA_VERSION = 1
# The factors by which all thresholds are multiplied, one for each point of the curve.
FACTORS = (0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.7, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0)


class CleanLevel(msgspec.Struct, frozen=True, kw_only=True):
    """Requests to an engine without a fault, at one level of noise.

    `excess`: the largest deviations in units of the tolerance, falling; only the first few hundred are kept. `over`:
    how many exceed each of FACTORS. `alarms`: requests with a finding of any checker; `alarms_without_threshold`: those
    of them that do not exceed the tolerance. `parted`: answers that diverged from the cold answer. `none`: why there is
    no tolerance, and so no comparison by scores.
    """

    worker: str
    noise: str
    cell: str
    requests: int
    hits: int  # requests that found a part of their prompt in the cache
    parted: int
    alarms: int
    alarms_without_threshold: int = 0
    excess: list[float] = []
    over: list[int] = []
    quantiles: dict[str, float] = {}  # of the excess
    band: NoiseBand | None = None
    none: str = ""
    rule: str = ""
    seconds: float = 0.0


class NoisyFault(msgspec.Struct, frozen=True, kw_only=True):
    """One fault under noise, at the operating point.

    `caught`: the fault was detected. `acted`: it changed the engine's behaviour. `needs_no_threshold`: it was found by
    counts, lengths, ends, events or a positive match. `excess`: the largest deviation, in units of the tolerance.
    """

    name: str
    mechanism: str
    outcome: str
    caught: bool
    acted: bool
    needs_no_threshold: bool
    excess: float
    by: str = ""
    requests: int = 0
    sentence: str = ""


class FaultLevel(msgspec.Struct, frozen=True, kw_only=True):
    """The faults that were measured at one level of noise. `of`: the number of faults to measure."""

    worker: str
    noise: str
    of: int
    faults: list[NoisyFault]
    budget: float


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One point of the curve: all thresholds are multiplied by `factor`. The operating point has factor 1."""

    factor: float
    alarms: int
    requests: int
    caught: int
    faults: int


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """The points at one level of noise, from the smallest to the largest threshold."""

    worker: str
    noise: str
    points: list[Point]


class NoiseResults(msgspec.Struct, frozen=True, kw_only=True):
    """The whole measurement."""

    schema_version: int = NOISE_SCHEMA_VERSION
    coldproof_version: str
    written: str  # ISO 8601, UTC
    engine: str
    clean: list[CleanLevel]
    faults: list[FaultLevel]
    curves: list[Curve]
