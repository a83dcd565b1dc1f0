"""Measures more cold answers of an engine that seemed exact, before one of its answers is called wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

import msgspec

from coldproof.harness.execution.calibration.calibrate import SHARE, noisy_rule
from coldproof.harness.execution.calibration.noise_band import Pace, largest_difference
from coldproof.harness.execution.calibration.pareto_tail import Unbounded
from coldproof.harness.execution.calibration.progress import SILENT, Progress
from coldproof.harness.execution.calibration.repeats import REPEATED_NATS
from coldproof.harness.execution.oracles.engine import EngineOracle
from coldproof.harness.judgement.finding import Rule
from coldproof.harness.judgement.oracle import OracleError
from coldproof.harness.workload.generators.prompts import DEFAULT_BLOCK, whole_unit
from coldproof.harness.workload.request_kinds import RequestKind
from coldproof.reports.schema.results import Calibration


def second_look(
    oracle: EngineOracle,
    digests: list[str],
    found: Calibration,
    *,
    block: int | None,
    seconds: float = math.inf,
    renew: Callable[[], object] | None = None,
    dropped: Collection[RequestKind] = (),
    on_death: Callable[[RequestKind, str], None] = lambda *_: None,
    progress: Progress = SILENT,
) -> tuple[Calibration, Rule] | None:
    """Measure many more cold answers of an engine that seemed exact. Return None if it still does.

    Activations that are rounded to 8 bits magnify a difference of 1e-7, but rarely: dozens of answers repeat. Where
    they differ and no tolerance of scores fits, the rule is by margins, or none. The parameters are those of
    `calibrate`. Raises OracleError.
    """
    identities: list[str | None] = [None, *digests[:2]]
    pace = Pace(found.answer_seconds or 0.0, SHARE * seconds)
    block = whole_unit(block or DEFAULT_BLOCK)
    if seems_exact(oracle, identities, block, pace, renew, progress):
        return None
    rule, said = noisy_rule(oracle, identities, block, pace, renew, progress, dropped=dropped, on_death=on_death)
    seen = rule.noise or 0.0 if rule.band is None else rule.band.all_nats
    if seen <= REPEATED_NATS and not isinstance(rule.why, Unbounded):
        return None
    said.append("The first answers were identical. A counterexample led to more of them.")
    noisy = msgspec.structs.replace(
        found, rule=str(rule), exact=False, noise_nats=rule.noise, band=rule.band, notes=[*found.notes, *said]
    )
    return noisy, rule


def seems_exact(
    oracle: EngineOracle,
    identities: list[str | None],
    block: int,
    pace: Pace,
    renew: Callable[[], object] | None,
    progress: Progress,
) -> bool:
    """Return whether a slow model's decode and prefill agree, which makes the full measurement unnecessary.

    Activations that are rounded show between these two. A model in float32 would spend most of a short budget on a
    tolerance that it does not need. Raises OracleError.
    """
    try:
        most = largest_difference(oracle, identities, block, pace, progress=progress)
    except OracleError:
        if renew is None:
            raise
        renew()  # the full measurement finds out what the engine died of
        return False
    return most is not None and most <= REPEATED_NATS
