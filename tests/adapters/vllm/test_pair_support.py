"""Capabilities of a pair of vLLM servers, by what both have in common."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.histories import shape

from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.vllm.cells.cell import LEASE
from coldproof.adapters.vllm.kv_tiers import TIERS, tier_flags
from coldproof.adapters.vllm.pair_support import of_pair

MORE = (Capability.CACHE_RESET, Capability.RESET_SECOND_TIER, Capability.PAUSE_KEEP, Capability.SLEEP)
NO_FILES = Support(False, "in memory")


@pytest.mark.parametrize(
    ("flags", "tier", "files", "fails", "resets"),
    [
        ((), False, False, False, (True, False, True, True)),  # NIXL: the prefiller keeps blocks for half a minute
        ((LEASE, "3"), False, False, True, (True, False, True, True)),
        ((), True, True, True, (False, True, True, True)),  # files, which no reset removes
        ((), True, False, True, (True, True, False, False)),  # memory, which only a reset of the tier clears
    ],
)
def test_what_two_engines_can_do_follows_from_what_they_share(
    flags: tuple[str, ...], *, tier: bool, files: bool, fails: bool, resets: tuple[bool, ...]
) -> None:
    """An absent capability has its reason."""
    known = {**dict.fromkeys(MORE, Support(True, "probed")), Capability.PERSISTENT_KV: Support(files, "by the tier")}
    found = known | of_pair(["python", *flags], shape(publishes_answers=False, second_tier=tier), known)
    assert found[Capability.PREFILL_APART].present
    assert found[Capability.SIDE_FAILURES].present is fails
    assert tuple(found[one].present for one in MORE) == resets
    assert all(support.evidence for support in found.values())


@pytest.mark.parametrize(("tier", "fails"), [("lmcache", True), ("files", False), (None, False)])
def test_only_a_server_that_the_pair_has_started_can_be_restarted(
    tmp_path: Path, tier: str | None, *, fails: bool
) -> None:
    """The pair starts only LMCache's server."""
    flags = [] if tier is None else tier_flags(TIERS[tier], tmp_path, 4321)
    found = of_pair(["python", *flags], shape(second_tier=tier is not None), {Capability.PERSISTENT_KV: NO_FILES})
    assert found[Capability.TIER_FAILURES].present is fails
