"""Evidence about requests with limits on loads and stores. Pure."""

from __future__ import annotations

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.harness.features.transfer_limits.workloads import CUT_LOADS, CUT_STORES
from coldproof.harness.history.records import (
    History,
    Outcome,
    assumed_block,
    common_prefix,
    requests_with_same_identity,
)
from coldproof.harness.judgement.counters import Evidence, computes


class TransferLimits(Evidence):
    """Requests whose limits could cut what is loaded or stored."""

    CUT_LOADS = CUT_LOADS
    CUT_STORES = CUT_STORES, Capability.TRANSFER_LIMITS


@computes(TransferLimits, order=107)
def limit_facts(history: History) -> dict[str, float]:
    """Return the counters of requests with limits below what an earlier one of their identity has computed."""
    answered = [outcome for outcome in history.outcomes if outcome.answered]
    return {
        CUT_LOADS: sum(may_load_less(history, outcome) for outcome in answered),
        CUT_STORES: sum(after_a_cut_store(history, outcome) for outcome in answered),
    }


def may_load_less(history: History, outcome: Outcome) -> bool:
    """Return whether a request's limit on loads is below what earlier ones have computed of its prompt."""
    limit = outcome.options.most_loaded
    return limit is not None and limit < known(history, outcome)


def known(history: History, outcome: Outcome) -> int:
    """Return how many tokens of a prompt earlier requests have computed, in whole blocks."""
    block = assumed_block(history)
    earlier = (other for other in requests_with_same_identity(history, outcome) if other.finished <= outcome.sent)
    return max((common_prefix(other.prompt, outcome.prompt) for other in earlier), default=0) // block * block


def after_a_cut_store(history: History, outcome: Outcome) -> bool:
    """Return whether an earlier request was allowed to store less than it shares with this one."""
    return any(
        other.options.most_stored is not None
        and other.finished <= outcome.sent
        and other.options.most_stored < common_prefix(other.prompt, outcome.prompt) - 1
        for other in requests_with_same_identity(history, outcome)
    )
