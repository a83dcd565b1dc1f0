"""Second KV tiers that an engine can be started with, as vLLM's `--kv-transfer-config` names them. Plain data.

The connectors are vLLM's own. Where one wants a GPU for nothing but copies, the fingerprint worker's room has a
stand-in for the device (adapters/fingerprint/tier).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

ROOM = "adapters.fingerprint.tier"
FOLDER = "(folder of the engine)"  # stands for a folder that only this engine has
FAILED_LOADS = "failed_loads"  # in the statistics of our connector
FAILED_LOADS_COUNTER = "vllm:coldproof_failed_loads"  # vLLM clears away only what is called so
OFFLOADED_BYTES = 2**20


class Tier(msgspec.Struct, frozen=True, kw_only=True):
    """A connector with its options. `ends_requests`: a request whose load failed ends with an error."""

    connector: str
    module: str | None = None
    options: dict[str, Any] = {}
    parts: tuple[Tier, ...] = ()
    ends_requests: bool = False


OFFLOAD = Tier(
    connector="OffloadingConnector",
    options={
        "spec_name": "HostOffloadingSpec",
        "spec_module_path": f"{ROOM}.offload",
        "cpu_bytes_to_use": OFFLOADED_BYTES,
        "offload_prompt_only": False,
    },
)
SIMPLE = Tier(connector="SimpleCPUOffloadConnector", options={"cpu_bytes_to_use": OFFLOADED_BYTES})


def with_options(tier: Tier, **options: Any) -> Tier:
    """The same connector with other options."""
    return msgspec.structs.replace(tier, options={**tier.options, **options})


def kept(*, ends_requests: bool = False, **options: Any) -> Tier:
    """The tier of ours."""
    return Tier(
        connector="FailingConnector",
        module=f"{ROOM}.failing",
        options=options,
        ends_requests=ends_requests,
    )


TIERS = {
    "offload": OFFLOAD,
    "offload-small": with_options(OFFLOAD, cpu_bytes_to_use=20 * 4096, block_size=64),
    "simple": SIMPLE,
    "simple-lazy": with_options(SIMPLE, lazy_offload=True),
    "example": Tier(connector="ExampleConnector", options={"shared_storage_path": FOLDER}),
    "multi": Tier(connector="MultiConnector", parts=(OFFLOAD, SIMPLE)),
    "kept": kept(),
    "failing": kept(failing=True),
    "failing-late": kept(failing=True, asynchronous=True),
    "failing-ends": kept(failing=True, ends_requests=True),
    "lmcache": Tier(connector="LMCacheConnectorV1"),
}


def tier_flags(tier: Tier, folder: Path) -> list[str]:
    """What makes a vLLM engine use the tier."""
    return ["--kv-transfer-config", json.dumps({**described(tier, folder), "kv_load_failure_policy": policy(tier)})]


def policy(tier: Tier) -> str:
    """vLLM's word for what happens to a request whose load failed."""
    return "fail" if tier.ends_requests else "recompute"


def described(tier: Tier, folder: Path) -> dict[str, Any]:
    """A connector as vLLM's configuration has it."""
    options: dict[str, Any] = {name: str(folder) if value == FOLDER else value for name, value in tier.options.items()}
    if tier.parts:
        options["connectors"] = [described(part, folder) for part in tier.parts]
    place = {} if tier.module is None else {"kv_connector_module_path": tier.module}
    return {"kv_connector": tier.connector, "kv_role": "kv_both", **place, "kv_connector_extra_config": options}
