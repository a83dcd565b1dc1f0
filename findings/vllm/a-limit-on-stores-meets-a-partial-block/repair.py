"""Leave the part of a block at a prompt's end out of the store where the request's limit ends before it.

That part is stored apart from whole blocks, and takes for granted that no limit ends before it. A limit of 0 is one.
"""

from __future__ import annotations

from coldproof.adapters.spec.repair import edit, part

RELEASES = "==0.32.0"


def install() -> None:
    """Plant the repair."""
    edit(
        part("vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler", "OffloadingConnectorScheduler"),
        "_build_partial_tail_store_jobs",
        (
            "req_status.max_offload_tokens or req.num_prompt_tokens,",
            "req.num_prompt_tokens if req_status.max_offload_tokens is None else req_status.max_offload_tokens,",
        ),
        ("assert boundary <= max_boundary\n", "if boundary > max_boundary:\n                continue\n"),
    )
