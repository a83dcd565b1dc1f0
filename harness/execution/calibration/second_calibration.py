"""Measures more cold answers of an engine that seemed exact, before one of its answers is called wrong.

Invariant: the rule becomes laxer only if generated cold answers differ from one another. What an engine says about the
scores of a prompt is no repetition of anything: a server may report any number there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

import msgspec

from coldproof.harness.execution.calibration.calibrate import SHARE, exact_rule, noisy_rule
from coldproof.harness.execution.calibration.noise_band import Pace, measure_repeats
from coldproof.harness.execution.calibration.progress import SILENT, Progress
from coldproof.harness.execution.calibration.repeats import Repeats
from coldproof.harness.execution.oracles.engine import EngineOracle
from coldproof.harness.judgement.finding import Rule
from coldproof.harness.judgement.oracle import OracleError
from coldproof.harness.schema.results import Calibration
from coldproof.harness.workload.generators.prompts import DEFAULT_BLOCK, whole_unit
from coldproof.harness.workload.request_kinds import RequestKind


def second_calibration(
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
) -> tuple[Calibration, Rule]:
    """Measure many more cold answers of an engine that seemed exact, and return what replaces its calibration.

    Activations that are rounded to 8 bits magnify a difference of 1e-7, but rarely: dozens of answers repeat. If these
    answers repeat too, the rule stays exact, and rests on more of them. The parameters are those of `calibrate`. Raises
    OracleError.
    """
    identities: list[str | None] = [None, *digests[:2]]
    pace = Pace(found.answer_seconds or 0.0, SHARE * seconds)
    block = whole_unit(block or DEFAULT_BLOCK)
    repeats = repeats_or_none(oracle, identities, block, pace, renew, progress)
    if repeats is None:
        return found, msgspec.structs.replace(exact_rule(found.cold), rounding=found.rounding)
    margins = [one for one in (found.cold.steady, repeats.steady) if one is not None]
    cold = msgspec.structs.replace(
        found.cold,
        rate=found.cold.rate + repeats.rate,
        nats=larger(found.cold.nats, repeats.nats),
        step=min((one for one in (found.cold.step, repeats.step) if one is not None), default=None),
        steady=None if repeats.rate.diverged else min(margins, default=None),
    )
    if repeats.exact:
        return with_rule(found, exact_rule(cold), "A counterexample led to more cold answers: they repeat as well.")
    rule, said = noisy_rule(oracle, identities, block, pace, renew, progress, dropped=dropped, on_death=on_death)
    if rule.band is not None:
        cold = msgspec.structs.replace(cold, rate=rule.band.repeats)
    said.append("The first answers were identical. A counterexample led to more of them, which differ.")
    return with_rule(found, msgspec.structs.replace(rule, cold=cold), *said)


def with_rule(found: Calibration, rule: Rule, *said: str) -> tuple[Calibration, Rule]:
    """Return a calibration with another rule, and the rule."""
    changed = msgspec.structs.replace(
        found,
        rule=str(rule),
        exact=rule.exact,
        noise_nats=found.noise_nats if rule.exact else rule.noise,
        band=rule.band,
        cold=rule.cold,
        rounding=rule.rounding,
        repeated=True,
        notes=[*found.notes, *said],
    )
    return changed, rule


def larger(one: float | None, other: float | None) -> float | None:
    """Return the larger of two differences; None if both are unknown."""
    return max((nats for nats in (one, other) if nats is not None), default=None)


def repeats_or_none(
    oracle: EngineOracle,
    identities: list[str | None],
    block: int,
    pace: Pace,
    renew: Callable[[], object] | None,
    progress: Progress,
) -> Repeats | None:
    """Return how well more cold answers repeat; None if the engine died of them, so that nothing new is known.

    Raises OracleError if the engine cannot be replaced.
    """
    try:
        return measure_repeats(oracle, identities, block, pace, progress=progress)
    except OracleError:
        if renew is None:
            raise
        renew()
        return None
