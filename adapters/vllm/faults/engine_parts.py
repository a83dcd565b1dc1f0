"""The parts of vLLM that faults change. vLLM is imported only when a fault is injected."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any


def module(name: str) -> Any:
    """Return a module of vLLM. It is untyped: with an import statement, mypy would check all of torch."""
    return importlib.import_module(f"vllm.{name}")


def manager() -> Any:
    """Return the class that looks up, allocates and frees the blocks of requests."""
    return module("v1.core.kv_cache_manager").KVCacheManager


def pool() -> Any:
    """Return the class that owns the blocks and the index of their hashes."""
    return module("v1.core.block_pool").BlockPool


def coordinator(kind: str = "") -> Any:
    """Return the class that looks up prefixes: of one group ("Unitary"), of several ("Hybrid"), or of both ("")."""
    return getattr(module("v1.core.kv_cache_coordinator"), f"{kind}KVCacheCoordinator")


def scheduler() -> Any:
    """Return the class that decides which requests run."""
    return module("v1.core.sched.scheduler").Scheduler


def fingerprint_runner() -> Any:
    """Return the class that computes the steps of the fingerprint worker."""
    return importlib.import_module("coldproof.adapters.vllm.fingerprint.model_step").Runner


def blocks_of(this: Any, request: Any) -> list[Any]:
    """Return the blocks that a request holds in the first group."""
    return list(this.coordinator.get_blocks(request.request_id)[0])


def find_requests(this: Any, names: str | Iterable[str] | None) -> list[Any]:
    """Return the requests of a scheduler with one or several names. It may know only some of them."""
    wanted = [names] if isinstance(names, str) else names or ()
    return [this.requests[name] for name in wanted if name in this.requests]


def name_and_path(lora: Any) -> tuple[str, str]:
    """Return the name and the path of an adapter."""
    return lora.lora_name, lora.lora_path


def is_waiting(request: Any) -> bool:
    """Return whether a request is not running yet, or is preempted."""
    return request.status.name in ("WAITING", "PREEMPTED")
