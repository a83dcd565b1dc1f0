"""Adapters whose key is right while the worker has other weights: reloads that are lost or late, slots mixed up.

None of it is about the cache: an engine without one is as wrong. Names on the wire are one workload's own, so what is
remembered by name is no other engine's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import msgspec

from harness.faults.fault import collector
from harness.faults.patching import Patch, acted, around, module, scheduler

FAULTS, fault = collector("weights")

Known = tuple[str, str]  # name and path


def known(lora: Any) -> Known:
    """What an adapter is known by here."""
    return lora.lora_name, lora.lora_path


def worker_sees(
    patch: Patch, *, loads: Callable[[Any, Any], Any] | None = None, requests: Callable[[Any], Any] | None = None
) -> None:
    """Have another adapter come to the worker: `loads(executor, adapter)` when one is loaded (None: nothing comes),
    `requests(adapter)` with each request."""

    def add(original: Any, executor: Any, lora: Any) -> bool:
        shown = lora if loads is None else loads(executor, lora)
        return shown is None or original(executor, shown)

    def new(original: Any, *arguments: Any, **named: Any) -> Any:
        made = original(*arguments, **named)
        if requests is not None and made.lora_request is not None:
            made.lora_request = requests(made.lora_request)
        return made

    around(patch, module("v1.executor.abstract").Executor, "add_lora", add)
    around(patch, module("v1.core.sched.output").NewRequestData, "from_request", new)


def lost_where(patch: Patch, is_lost: Callable[[Any], bool]) -> None:
    """Have in-place reloads come to the worker as adapters that it has already."""
    lost: set[Known] = set()

    def load(_executor: Any, lora: Any) -> Any:
        lost.discard(known(lora))
        if is_lost(lora):
            lost.add(known(lora))
        return request(lora)

    def request(lora: Any) -> Any:
        if known(lora) not in lost:
            return lora
        acted()
        return msgspec.structs.replace(lora, load_inplace=False)

    worker_sees(patch, loads=load, requests=request)


@fault("LORA-1", "LORA-3", stands_for="vllm PR#48352")
def in_place_reloads_keep_the_old_weights(patch: Patch) -> None:
    """The key changes with an in-place reload, and the worker keeps what it has."""
    lost_where(patch, lambda lora: bool(lora.load_inplace))


@fault("LORA-1", "LORA-5", stands_for="vllm PR#48352", rare="only at every second in-place reload")
def every_second_reload_keeps_the_old_weights(patch: Patch) -> None:
    """Every second time the key changes with an in-place reload, and the worker keeps what it has."""
    count = itertools.count(1)
    lost_where(patch, lambda lora: bool(lora.load_inplace) and next(count) % 2 == 0)


@fault("LORA-3", stands_for="vllm#44939", rare="only when an in-place reload is from the path of the load before")
def a_path_is_read_once(patch: Patch) -> None:
    """The worker takes a path that it has read before for files that it has read before."""
    latest: dict[str, str] = {}

    def same(lora: Any) -> bool:
        before, latest[lora.lora_name] = latest.get(lora.lora_name), lora.lora_path
        return bool(lora.load_inplace) and before == lora.lora_path

    lost_where(patch, same)


@fault("LORA-1", stands_for="vllm PR#48352", rare="only for the first request after an in-place reload")
def the_key_changes_before_the_weights(patch: Patch) -> None:
    """The first request after an in-place reload is computed with the old weights under the new key."""
    late: set[Known] = set()

    def load(_executor: Any, lora: Any) -> Any:
        if not lora.load_inplace:
            return lora
        late.add(known(lora))
        return None

    def request(lora: Any) -> Any:
        if known(lora) not in late:
            return lora
        late.remove(known(lora))
        acted()
        return msgspec.structs.replace(lora, load_inplace=False)

    worker_sees(patch, loads=load, requests=request)


@fault("LORA-2", stands_for="vllm#30931", rare="only at every second name that is loaded again")
def a_name_loaded_again_has_its_first_weights(patch: Patch) -> None:
    """After unload + load the worker reads the files that the name stood for before, every second time."""
    paths: dict[str, str] = {}
    wrong: dict[Known, str] = {}
    count = itertools.count(1)

    def load(_executor: Any, lora: Any) -> Any:
        before = paths.setdefault(lora.lora_name, lora.lora_path)
        wrong.pop(known(lora), None)
        if not lora.load_inplace and before != lora.lora_path and next(count) % 2 == 0:
            wrong[known(lora)] = before
        return request(lora)

    def request(lora: Any) -> Any:
        if known(lora) not in wrong:
            return lora
        acted()
        return msgspec.structs.replace(lora, lora_path=wrong[known(lora)])

    worker_sees(patch, loads=load, requests=request)


@fault("LORA-7", stands_for="vllm#38606", rare="only for an adapter that was thrown out of its slot")
def a_slots_new_occupant_answers(patch: Patch) -> None:
    """Requests to an adapter that lost its slot are answered by the adapter that has it now."""
    orders: dict[int, list[Any]] = {}
    occupants: dict[Known, str] = {}

    def load(executor: Any, lora: Any) -> Any:
        occupants.pop(known(lora), None)
        # A run's cold engine has more contents than slots, too: there it would be the oracle that is wrong, which a
        # run notices and ends with.
        if lora.load_inplace or not executor.cache_config.enable_prefix_caching:
            return lora
        order = orders.setdefault(id(executor), [])
        order.append(lora)
        if len(order) > executor.lora_config.max_loras:
            occupants[known(order.pop(0))] = lora.lora_path
        return lora

    def request(lora: Any) -> Any:
        if known(lora) not in occupants:
            return lora
        acted()
        return msgspec.structs.replace(lora, lora_path=occupants[known(lora)])

    worker_sees(patch, loads=load, requests=request)


@fault("LORA-7", stands_for="vllm#38606", workers=("model",), rare="only at every third adapter that takes over a slot")
def a_slot_keeps_its_weights(patch: Patch) -> None:
    """An adapter takes over a slot, and the weights in it stay those of the adapter before."""
    used: dict[int, set[int]] = {}
    count = itertools.count(1)

    def born(original: Any, held: Any, *arguments: Any, **named: Any) -> None:
        if named["vllm_config"].cache_config.enable_prefix_caching:  # not in the oracle: as above
            used[id(held)] = set()
        original(held, *arguments, **named)

    def activate(original: Any, held: Any, number: int) -> bool:
        slots = used.get(id(held), set())
        free = next((i for i, one in enumerate(held.lora_index_to_id) if one is None), None)
        taken_over = number not in held._active_adapters and free in slots and next(count) % 3 == 0
        modules = held.modules
        if taken_over:
            acted()
            held.modules = {}
        try:
            return bool(original(held, number))
        finally:
            held.modules = modules
            if free is not None:
                slots.add(free)

    owner = module("lora.model_manager").LoRAModelManager
    around(patch, owner, "__init__", born)
    around(patch, owner, "activate_adapter", activate)


@fault("GROUND-1", stands_for="vllm#38606", rare="only when requests of two adapters begin in one step")
def adapters_of_one_step_are_swapped(patch: Patch) -> None:
    """Two requests that begin in one step get one another's adapter."""

    def schedule(original: Any, held: Any, *arguments: Any, **named: Any) -> Any:
        output = original(held, *arguments, **named)
        first, *others = [new for new in output.scheduled_new_reqs if new.lora_request is not None] or [None]
        other = next((new for new in others if known(new.lora_request) != known(first.lora_request)), None)
        if first is not None and other is not None:
            acted()
            first.lora_request, other.lora_request = other.lora_request, first.lora_request
        return output

    around(patch, scheduler(), "schedule", schedule)
