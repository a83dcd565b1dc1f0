"""Which mixtures of models in a batch may be the cause of a counterexample, instead of the prefix cache. Pure.

Where GROUND-1 forbids one of them, before or after, the counterexample says nothing about another requirement.
"""

from __future__ import annotations

import msgspec

from coldproof.harness.judgement.mixtures import mixtures_of
from coldproof.harness.proof.confirm.confirm import Confirmed
from coldproof.harness.proof.diagnose.conclusion import UNLIKELY, chance
from coldproof.harness.proof.diagnose.controls import CONCURRENT
from coldproof.harness.schema.case import Case, Strength


def suspected_mixtures(confirmed: Confirmed) -> list[str]:
    """Return the mixtures up to the failing request; none if the replays prove that the failure needs the cache."""
    failed, off = sum(bool(j.findings) for j in confirmed.replays), confirmed.caching_off
    right = bool(off) and not any(j.findings for j in off)
    if right and failed and chance(failed, len(confirmed.replays), len(off)) <= UNLIKELY:
        return []
    return sorted(mixtures_of(confirmed.judgement.history, confirmed.judgement.worst().request))


def without_disproved_mixtures(case: Case) -> Case:
    """Return the case; without mixtures if it also fails with one request at a time."""
    rows = case.diagnosis.controls if case.diagnosis is not None else []
    alone = any(row.removes == CONCURRENT and row.tells is Strength.NOT_NEEDED for row in rows)
    return msgspec.structs.replace(case, mixtures=[]) if alone else case
