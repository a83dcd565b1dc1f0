"""curve.json: false alarms against caught faults where engines do not repeat themselves. Written by `harness.noise`."""

from __future__ import annotations

import msgspec

from reports.schema import NoiseBand

NOISE_SCHEMA_VERSION = 1
# What all thresholds are multiplied by: the places of the curve.
FACTORS = (0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.7, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0)


class CleanLevel(msgspec.Struct, frozen=True, kw_only=True):
    """Requests to an engine without any fault, at one level of noise.

    `excess`: the largest deviations in units of what the band allows, falling; only the first few hundred are kept.
    `over`: how many exceed each of FACTORS. `alarms`: requests that the rule as it is accuses, by whichever checker;
    `alarms_without_threshold`: of these, such as deviate by no more than the band. `parted`: answers with another token
    than the cold one has. `none`: why there is no band, and so no judgement by scores.
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

    `caught`: a requirement was violated, confirmed. `acted`: it made a difference to the engine. `needs_no_threshold`:
    it was found by counts, lengths, ends, events or a positive match. `excess`: of the answer that strayed furthest.
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
    """The catalogue at one level of noise, as far as it was measured. `of`: so many are to be measured."""

    worker: str
    noise: str
    of: int
    faults: list[NoisyFault]
    budget: float


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One place of the curve: all thresholds times `factor`. The operating point is at 1."""

    factor: float
    alarms: int
    requests: int
    caught: int
    faults: int


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """The points at one level of noise, from the strictest threshold to the most forgiving."""

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
