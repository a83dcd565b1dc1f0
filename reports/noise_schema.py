"""curve.json: false alarms against caught faults where engines do not repeat themselves. Written by `harness.noise`."""

from __future__ import annotations

import msgspec

from reports.schema import NoiseBand

NOISE_SCHEMA_VERSION = 1


class CleanLevel(msgspec.Struct, frozen=True, kw_only=True):
    """Requests to an engine without any fault, at one level of noise.

    `excess`: the largest deviations in units of what the band allows, falling; only the first few hundred are kept.
    `alarms`: findings of the rule as it is, by whichever checker. `parted`: answers with another token than the cold
    one has. `none`: why there is no band, and so no judgement by scores.
    """

    worker: str
    noise: str
    cell: str
    requests: int
    hits: int  # requests that found a part of their prompt in the cache
    parted: int
    alarms: int
    excess: list[float] = []
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
