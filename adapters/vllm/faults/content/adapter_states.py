"""Adapters whose weights are wrong only after two events: reloads without a request between them, a lost slot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from coldproof.adapters.common.lora_digest import content_digest
from coldproof.adapters.spec.fault import Patch, collector
from coldproof.adapters.vllm.faults.content.lora_weights import change_worker_adapters
from coldproof.adapters.vllm.faults.engine_parts import name_and_path
from coldproof.adapters.vllm.faults.patching import acted

FAULTS, fault = collector("adapter_states")


@fault(
    "LORA-1",
    "LORA-5",
    stands_for="vllm PR#48352",
    rare="only for an in-place reload of an adapter that no request has used since its last load",
)
def the_second_of_two_loads_without_a_request_is_lost(patch: Patch) -> None:
    """An adapter is replaced in place before a request has used it. The worker keeps the earlier content, and the key
    has the new one.
    """
    unused: set[str] = set()
    lost: set[tuple[str, str]] = set()
    worker: dict[str, str] = {}  # name -> the content that the worker has read

    def load(executor: Any, lora: Any) -> Any:
        lost.discard(name_and_path(lora))
        name, folder = lora.lora_name, Path(lora.lora_path)
        content = content_digest(folder) if folder.is_dir() else ""  # the worker refuses what does not exist
        again = executor.cache_config.enable_prefix_caching and lora.load_inplace and name in unused
        unused.add(name)
        if not again or worker.get(name) == content:
            worker[name] = content
            return lora
        lost.add(name_and_path(lora))
        return msgspec.structs.replace(lora, load_inplace=False)

    def request(lora: Any) -> Any:
        unused.discard(lora.lora_name)
        if name_and_path(lora) not in lost:
            return lora
        acted()
        return msgspec.structs.replace(lora, load_inplace=False)

    change_worker_adapters(patch, loads=load, requests=request)


@fault(
    "LORA-7",
    "MIXED-1",
    stands_for="vllm#38606, vllm PR#48352",
    rare="only for an adapter that was replaced in place and lost its slot since its last request",
)
def an_adapter_that_lost_its_slot_returns_with_its_first_files(patch: Patch) -> None:
    """An adapter that was replaced in place, and whose slot others used since, is read again from its first path."""
    first: dict[str, str] = {}
    latest: list[str] = []  # names in the order of their last request
    slots = [0]

    def load(executor: Any, lora: Any) -> Any:
        if executor.cache_config.enable_prefix_caching:
            slots[0] = executor.lora_config.max_loras
            first.setdefault(lora.lora_name, lora.lora_path)
        return lora

    def request(lora: Any) -> Any:
        name = lora.lora_name
        if name not in first:  # an adapter of another engine of this process, without caching
            return lora
        evicted = name in latest[: -slots[0]]
        latest[:] = [*(one for one in latest if one != name), name]
        if not (evicted and lora.load_inplace and first[name] != lora.lora_path):
            return lora
        acted()
        return msgspec.structs.replace(lora, lora_path=first[name])

    change_worker_adapters(patch, loads=load, requests=request)
