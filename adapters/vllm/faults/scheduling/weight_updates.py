"""Pauses, sleeps and updates of the weights that leave old KV behind, or do not do what they confirm."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from coldproof.adapters.spec.fault import Patch, collector
from coldproof.adapters.vllm.faults.engine_parts import module, pool, scheduler
from coldproof.adapters.vllm.faults.keys.lora_and_salt import change_salt_key
from coldproof.adapters.vllm.faults.patching import acted, after, around, override
from coldproof.adapters.vllm.faults.scheduling.cache_reset import forget_hashes

FAULTS, fault = collector("updates")


def core(kind: str = "") -> Any:
    """Return the class that owns scheduler and model; with "Proc", the one that runs in a server's own process."""
    return getattr(module("v1.engine.core"), f"EngineCore{kind}")


def change_pauses(patch: Patch, change: Callable[[Any, str, bool], tuple[str, bool]]) -> None:
    """Pause with `change(scheduler, mode, clear)` in place of a mode and its clearing."""
    for owner in (core(), core("Proc")):

        @around(patch, owner, "pause_scheduler")
        def pause(original: Any, this: Any, mode: str = "abort", clear_cache: bool = True) -> Any:
            return original(this, *change(this.scheduler, mode, clear_cache))


def replace_reset_of_running(patch: Patch, instead: Callable[[Any, Callable[[], bool]], bool]) -> None:
    """Call `instead(scheduler, original)` for a reset that preempts the running requests, if there are any."""

    @around(patch, scheduler(), "reset_prefix_cache")
    def reset(original: Any, this: Any, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        def plain() -> bool:
            return bool(original(this, reset_running_requests, reset_connector))

        return instead(this, plain) if reset_running_requests and this.running else plain()


def indexed_blocks(this: Any) -> list[tuple[Any, Any, int]]:
    """Return the entries of a pool's index: hash, block and number of tokens."""
    index = this.cached_block_hash_to_block
    entries = [(key, index.get_one_block(key)) for key in index._cache]
    return [(key, block, block.block_hash_num_tokens) for key, block in entries]


def restore_entries(this: Any, entries: list[tuple[Any, Any, int]]) -> None:
    """Put entries back into a pool's index."""
    for key, block, tokens in entries:
        this._insert_block_hash(key, block, num_tokens=tokens)
    if entries:
        acted()


@fault("WEIGHT-1", stands_for="omni#6739, omni#5513")
def a_pause_clears_nothing(patch: Patch) -> None:
    """A pause that should clear the cache confirms it and clears nothing."""

    @around(patch, core(), "_finish_pause")
    def finish(original: Any, this: Any, clear_cache: bool) -> None:
        if clear_cache:
            acted()
        original(this, False)


@fault("WEIGHT-1", stands_for="omni#6442, vllm#17103")
def a_sleep_keeps_the_index(patch: Patch) -> None:
    """A sleep discards the KV, but its blocks stay in the index."""

    @around(patch, core(), "sleep")
    def sleep(original: Any, this: Any, level: int = 1, mode: str = "abort") -> Any:
        acted()
        with override(this, "_reset_caches", lambda *_, **__: None):
            return original(this, level, mode)


@fault("WEIGHT-2", "WEIGHT-3", stands_for="SkyRL PR#1836")
def kept_requests_keep_their_kv(patch: Patch) -> None:
    """A pause that clears the cache empties the index, but the kept requests go on with the KV that they have."""

    def instead(this: Any, _original: Callable[[], bool]) -> bool:
        forget_hashes(this.kv_cache_manager.block_pool)
        acted()
        return True

    replace_reset_of_running(patch, instead)


@fault("WEIGHT-2", "WEIGHT-3", stands_for="sglang#33783")
def blocks_of_kept_requests_stay_in_the_index(patch: Patch) -> None:
    """A pause that clears the cache leaves the blocks of the kept requests in the index: they hit their own old KV."""

    def instead(this: Any, original: Callable[[], bool]) -> bool:
        blocks = this.kv_cache_manager.block_pool
        used = [entry for entry in indexed_blocks(blocks) if entry[1].ref_cnt]
        done = original()
        restore_entries(blocks, used)
        return done

    replace_reset_of_running(patch, instead)


@fault("WEIGHT-2", "WEIGHT-3", stands_for="NeMo-RL PR#4018")
def a_pause_that_keeps_requests_ignores_the_clearing(patch: Patch) -> None:
    """A pause with mode keep confirms that it cleared the cache, and clears nothing."""

    def change(this: Any, mode: str, clear: bool) -> tuple[str, bool]:
        if mode == "keep" and clear and this.requests:
            acted()
        return mode, clear and mode != "keep"

    change_pauses(patch, change)


@fault("WEIGHT-2", stands_for="a pause that returns before it has an effect")
def a_pause_that_aborts_keeps_requests(patch: Patch) -> None:
    """A pause with mode abort keeps the requests in flight, and they go on after it."""

    def change(this: Any, mode: str, clear: bool) -> tuple[str, bool]:
        if mode == "abort" and this.running:
            acted()
        return "keep" if mode == "abort" else mode, clear

    change_pauses(patch, change)


@fault("WEIGHT-2", stands_for="a pause that returns before it has an effect")
def a_pause_does_not_pause(patch: Patch) -> None:
    """A pause is confirmed, but the scheduler goes on."""

    @around(patch, scheduler(), "set_pause_state")
    def pause(original: Any, this: Any, state: Any) -> None:
        if state.name == "UNPAUSED":
            original(this, state)
        elif this.requests:
            acted()


@fault("WEIGHT-2", stands_for="tpu-inference PR#3362")
def requests_that_wait_during_a_pause_are_lost(patch: Patch) -> None:
    """Requests that came during a pause are never scheduled."""

    @around(patch, scheduler(), "set_pause_state")
    def pause(original: Any, this: Any, state: Any) -> None:
        original(this, state)
        late = [one for one in this.waiting if one.status.name == "WAITING"] if state.name == "UNPAUSED" else []
        if late:
            this.waiting.remove_requests(late)
            acted()


@fault("WEIGHT-1", stands_for="vllm#32718")
def an_update_has_no_effect(patch: Patch) -> None:
    """A reload of the weights is confirmed, and the old weights stay."""

    @around(patch, core(), "collective_rpc")
    def call(original: Any, this: Any, method: Any, *args: Any, **kwargs: Any) -> Any:
        if method != "reload_weights":
            return original(this, method, *args, **kwargs)
        acted()
        return [None]


@fault("WEIGHT-1", stands_for="trl#5312")
def a_wake_up_returns_to_the_weights_of_the_start(patch: Patch) -> None:
    """A wake-up restores the weights that the engine had at its start, whatever was loaded since."""

    @after(patch, core(), "wake_up")
    def wake(_result: Any, this: Any, *_: Any, **__: Any) -> None:
        acted()
        start = this.vllm_config.model_config.tokenizer  # the model's folder; a reload does not change it
        this.model_executor.collective_rpc("reload_weights", kwargs={"weights_path": start})


@fault("WEIGHT-4", stands_for="vllm#44939")
def a_reset_leaves_the_blocks_of_adapters(patch: Patch) -> None:
    """A reset removes only the blocks of the base model, as if the adapters did not depend on its weights."""
    of_adapters: set[int] = set()

    @after(patch, pool(), "cache_full_blocks")
    def cached(_result: Any, _this: Any, request: Any, blocks: Any, *_: Any, **__: Any) -> None:
        ids = {id(block) for block in blocks if block.block_hash is not None}
        if request.lora_request is None:
            of_adapters.difference_update(ids)
        else:
            of_adapters.update(ids)

    @around(patch, pool(), "reset_prefix_cache")
    def reset(original: Any, this: Any) -> bool:
        kept = [entry for entry in indexed_blocks(this) if id(entry[1]) in of_adapters]
        done = bool(original(this))
        if done:
            restore_entries(this, kept)
        return done


@fault("WEIGHT-1", "WEIGHT-3", stands_for="a salt that is shortened to the name before its version")
def the_version_in_a_salt_is_cut_off(patch: Patch) -> None:
    """Salts that differ only in the number behind their name share blocks."""
    change_salt_key(patch, lambda _request, salt: re.sub(r"^([a-z]+)-\d+", r"\1", salt))
