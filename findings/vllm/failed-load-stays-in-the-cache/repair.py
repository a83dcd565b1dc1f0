"""Evict blocks whose load failed, also with the policy recompute.

Their request still computes them, but until then nothing must hit them, and a block without a hash is hit by nothing.
"""

from __future__ import annotations

from coldproof.adapters.spec.repair import edit, part

RELEASES = "==0.32.0"


def install() -> None:
    """Plant the repair."""
    edit(
        part("vllm.v1.core.sched.scheduler", "Scheduler"),
        "_handle_invalid_blocks",
        ("if sync_blocks_to_evict and not self.recompute_kv_load_failures:", "if sync_blocks_to_evict:"),
    )
