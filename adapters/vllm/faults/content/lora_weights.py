"""Adapters whose cache key is correct while the worker has other weights: reloads that are lost or late, mixed-up
slots.

These faults are not in the cache: an engine without caching is wrong, too. Each workload has its own adapter names, so
what a fault remembers by name belongs to one workload.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import msgspec

from coldproof.adapters.spec.fault import Patch, collector
from coldproof.adapters.vllm.faults.engine_parts import module, name_and_path, scheduler
from coldproof.adapters.vllm.faults.patching import acted, after, around, before, override

FAULTS, fault = collector("weights")

WrongFields = dict[tuple[str, str], dict[str, Any]]  # name and path of an adapter -> wrong fields


def change_worker_adapters(patch: Patch, *, loads: Callable[[Any, Any], Any], requests: Callable[[Any], Any]) -> None:
    """Send another adapter to the worker: `loads(executor, adapter)` when one is loaded (None: nothing is sent),
    `requests(adapter)` with each request.
    """

    @around(patch, module("v1.executor.abstract").Executor, "add_lora")
    def add(original: Any, executor: Any, lora: Any) -> bool:
        shown = loads(executor, lora)
        return shown is None or original(executor, shown)

    @after(patch, module("v1.core.sched.output").NewRequestData, "from_request")
    def new(made: Any, *_: Any, **__: Any) -> None:
        if made.lora_request is not None:
            made.lora_request = requests(made.lora_request)


def change_fields(patch: Patch, on_load: Callable[[Any, Any, WrongFields], None]) -> None:
    """Send adapters with wrong fields to the worker. `on_load(executor, adapter, wrong)` adds to `wrong` at a load."""
    wrong: WrongFields = {}

    def load(executor: Any, lora: Any) -> Any:
        wrong.pop(name_and_path(lora), None)
        on_load(executor, lora, wrong)
        return request(lora)

    def request(lora: Any) -> Any:
        if name_and_path(lora) not in wrong:
            return lora
        acted()
        return msgspec.structs.replace(lora, **wrong[name_and_path(lora)])

    change_worker_adapters(patch, loads=load, requests=request)


def lose_reloads(patch: Patch, is_lost: Callable[[Any], bool]) -> None:
    """Send in-place reloads for which `is_lost` is true to the worker as adapters that it already has."""

    def on_load(_executor: Any, lora: Any, wrong: WrongFields) -> None:
        if is_lost(lora):
            wrong[name_and_path(lora)] = {"load_inplace": False}

    change_fields(patch, on_load)


@fault("LORA-1", "LORA-3", stands_for="vllm PR#48352")
def in_place_reloads_keep_the_old_weights(patch: Patch) -> None:
    """An in-place reload changes the key, but the worker keeps the old weights."""
    lose_reloads(patch, lambda lora: bool(lora.load_inplace))


@fault("LORA-1", "LORA-5", stands_for="vllm PR#48352", rare="only at every second in-place reload")
def every_second_reload_keeps_the_old_weights(patch: Patch) -> None:
    """Every second in-place reload changes the key, but the worker keeps the old weights."""
    count = itertools.count(1)
    lose_reloads(patch, lambda lora: bool(lora.load_inplace) and next(count) % 2 == 0)


@fault("LORA-3", stands_for="vllm#44939", rare="only when an in-place reload has the path of the previous load")
def a_path_is_read_once(patch: Patch) -> None:
    """The worker does not read a path again that it has read before, even if its files changed."""
    latest: dict[str, str] = {}

    def same(lora: Any) -> bool:
        before, latest[lora.lora_name] = latest.get(lora.lora_name), lora.lora_path
        return bool(lora.load_inplace) and before == lora.lora_path

    lose_reloads(patch, same)


@fault("LORA-1", stands_for="vllm PR#48352", rare="only for the first request after an in-place reload")
def the_key_changes_before_the_weights(patch: Patch) -> None:
    """The first request after an in-place reload is computed with the old weights and the new key."""
    late: set[tuple[str, str]] = set()

    def load(_executor: Any, lora: Any) -> Any:
        if not lora.load_inplace:
            return lora
        late.add(name_and_path(lora))
        return None

    def request(lora: Any) -> Any:
        if name_and_path(lora) not in late:
            return lora
        late.remove(name_and_path(lora))
        acted()
        return msgspec.structs.replace(lora, load_inplace=False)

    change_worker_adapters(patch, loads=load, requests=request)


@fault("LORA-2", stands_for="vllm#30931", rare="only at every second load of a name that was unloaded")
def a_name_loaded_again_has_its_first_weights(patch: Patch) -> None:
    """Every second time after unload + load, the worker reads the files that the name had before."""
    paths: dict[str, str] = {}
    count = itertools.count(1)

    def on_load(_executor: Any, lora: Any, wrong: WrongFields) -> None:
        before = paths.setdefault(lora.lora_name, lora.lora_path)
        if not lora.load_inplace and before != lora.lora_path and next(count) % 2 == 0:
            wrong[name_and_path(lora)] = {"lora_path": before}

    change_fields(patch, on_load)


@fault("LORA-7", stands_for="vllm#38606", rare="only for an adapter that was evicted from its slot")
def a_request_is_served_by_its_slots_new_adapter(patch: Patch) -> None:
    """Requests for an adapter that was evicted from its slot are answered by the adapter that has the slot now."""
    orders: dict[int, list[Any]] = {}

    def on_load(executor: Any, lora: Any, wrong: WrongFields) -> None:
        # The run's cold engine also has more contents than slots. There the fault would make the oracle wrong, and the
        # run would detect this and end.
        if lora.load_inplace or not executor.cache_config.enable_prefix_caching:
            return
        order = orders.setdefault(id(executor), [])
        order.append(lora)
        if len(order) > executor.lora_config.max_loras:
            wrong[name_and_path(order.pop(0))] = {"lora_path": lora.lora_path}

    change_fields(patch, on_load)


@fault("LORA-7", stands_for="vllm#38606", workers=("model",), rare="only at every third adapter that gets a used slot")
def a_slot_keeps_its_weights(patch: Patch) -> None:
    """An adapter gets the slot of another one, and the weights in it stay those of the earlier adapter."""
    owner = module("lora.model_manager").LoRAModelManager
    used: dict[int, set[int]] = {}
    count = itertools.count(1)

    @before(patch, owner, "__init__")
    def born(this: Any, *_: Any, **kwargs: Any) -> None:
        if kwargs["vllm_config"].cache_config.enable_prefix_caching:  # not in the oracle, as above
            used[id(this)] = set()

    @around(patch, owner, "activate_adapter")
    def activate(original: Any, this: Any, number: int) -> bool:
        slots = used.get(id(this), set())
        free = next((i for i, one in enumerate(this.lora_index_to_id) if one is None), None)
        taken_over = number not in this._active_adapters and free in slots and next(count) % 3 == 0
        if taken_over:
            acted()
        try:
            with override(this, "modules", {} if taken_over else this.modules):
                return bool(original(this, number))
        finally:
            if free is not None:
                slots.add(free)


@fault("GROUND-1", stands_for="vllm#38606", rare="only when requests of two adapters start in one step")
def adapters_of_one_step_are_swapped(patch: Patch) -> None:
    """Two requests that start in one step get each other's adapter."""

    @after(patch, scheduler(), "schedule")
    def schedule(output: Any, *_: Any, **__: Any) -> None:
        first, *others = [new for new in output.scheduled_new_reqs if new.lora_request is not None] or [None]
        other = next(
            (new for new in others if name_and_path(new.lora_request) != name_and_path(first.lora_request)), None
        )
        if first is not None and other is not None:
            acted()
            first.lora_request, other.lora_request = other.lora_request, first.lora_request
