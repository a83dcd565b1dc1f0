"""What two servers of vLLM can do of which one computes prompts and the other one decodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.protocol.shape import EngineShape
from coldproof.adapters.vllm.cells.cell import LEASE
from coldproof.adapters.vllm.kv_tiers import LMCACHE_START

POOL_ALONE = (
    *(Capability.PAUSE_ABORT, Capability.PAUSE_WAIT, Capability.PAUSE_KEEP),
    *(Capability.SLEEP, Capability.SLEEP_DISCARDS),
)


def of_pair(
    command: Sequence[str], shape: EngineShape, known: Mapping[Capability, Support]
) -> dict[Capability, Support]:
    """Return what two engines can of which one computes prompts and the other one decodes."""
    found = {
        Capability.PREFILL_APART: Support(True, "two engines, of which one computes prompts and the other one decodes"),
        Capability.SIDE_FAILURES: side_failures(command, shape),
        Capability.TIER_FAILURES: tier_failures(command),
        Capability.ONE_SIDE_FIRST: Support(True, "the router passes on what it gets under /sides/SIDE"),
    }
    if not shape.shares_a_tier:
        return found | {Capability.RESET_SECOND_TIER: Support(False, "nothing is kept but what a request fetches")}
    if known[Capability.PERSISTENT_KV].present:
        why = "no reset removes the files of both engines, and they do not say which weights wrote them"
        return found | dict.fromkeys((Capability.CACHE_RESET, Capability.WEIGHT_UPDATES), Support(False, why))
    return found | dict.fromkeys(POOL_ALONE, Support(False, "it clears the pools of both engines, and not their tier"))


def side_failures(command: Sequence[str], shape: EngineShape) -> Support:
    """Return whether sides may fail: only where the prefiller soon gives back what nobody has fetched. Otherwise
    blocks are rightly in use for half a minute after a failure.
    """
    if shape.shares_a_tier:
        return Support(True, "the router restarts a side, and no side keeps blocks for the other one")
    if LEASE in command:
        return Support(True, f"the router restarts a side, and {LEASE} is given")
    return Support(False, f"without {LEASE}, the prefiller keeps for 30 seconds what nobody has fetched")


def tier_failures(command: Sequence[str]) -> Support:
    """Return whether what both share has a server that the router can restart."""
    if any(LMCACHE_START in word for word in command):
        return Support(True, "the router restarts the LMCache server that it has started for both")
    return Support(False, "what both share has no server")
