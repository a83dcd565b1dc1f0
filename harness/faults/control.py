"""Resets and aborts."""

from __future__ import annotations

from typing import Any

from harness.faults.fault import collector
from harness.faults.patching import Patch, around, pool

FAULTS, fault = collector("control")


@fault("CTRL-1", stands_for="omni#6739")
def a_reset_only_says_so(patch: Patch) -> None:
    """A cache reset answers success and does nothing."""
    patch.setattr(pool(), "reset_prefix_cache", lambda _: True)


@fault("CTRL-1", stands_for="vllm PR#12284")
def a_reset_under_load_only_says_so(patch: Patch) -> None:
    """One that comes while requests hold blocks answers success and does nothing (vllm PR#12284)."""

    def reset(original: Any, held: Any) -> bool:
        return original(held) or True

    around(patch, pool(), "reset_prefix_cache", reset)
