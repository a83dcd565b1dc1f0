"""Prefill and decode on different engines: prompts that are fetched wrongly, and changes that only one engine makes."""

from __future__ import annotations

import os
from typing import Any

from coldproof.adapters.spec.fault import Patch, collector
from coldproof.adapters.vllm.faults.engine_parts import module, pool
from coldproof.adapters.vllm.faults.patching import acted, around, before

FAULTS, fault = collector("between_engines")
SIDE_VARIABLE = "PREFILL_DECODE_SIDE"  # in the environment of each server: see prefill_decode.py
PAIR, MODEL = ("prefill-decode", "prefill-decode-tight"), ("model",)


@fault("PD-1", stands_for="vllm#52617, LMCache PR#2207", cells=PAIR, workers=MODEL)
def a_partial_fetch_begins_at_the_prompts_start(patch: Patch) -> None:
    """Where the decoder has the first blocks of a prompt, it fetches as many as it lacks, but the first ones."""
    puller = module("distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler").NixlPullConnectorScheduler

    @before(patch, puller, "update_state_after_alloc")
    def allocated(_this: Any, request: Any, blocks: Any, tokens: int) -> None:
        params = request.kv_transfer_params or {}
        lacking = [len(group) for group in blocks.get_unhashed_block_ids_all_groups()]
        remote = params.get("remote_block_ids")
        if tokens and remote and params.get("do_remote_prefill") and len(remote[0]) > lacking[0]:
            acted()
            params["remote_block_ids"] = tuple(
                list(group)[:count] for group, count in zip(remote, lacking, strict=True)
            )


ENTRY_POINTS = "the class of entry points that drop the salt (vllm PR#47696)"


@fault("PD-2", stands_for=ENTRY_POINTS, cells=PAIR, workers=MODEL)
def the_prefiller_gets_no_salt(patch: Patch) -> None:
    """The prefiller ignores the salt of a prompt that it computes for another engine."""
    drop_salts(patch, "prefill")


@fault("PD-2", stands_for=ENTRY_POINTS, cells=PAIR, workers=MODEL)
def the_decoder_gets_no_salt(patch: Patch) -> None:
    """The decoder ignores the salt of a prompt whose KV it fetches."""
    drop_salts(patch, "decode")


def drop_salts(patch: Patch, side: str) -> None:
    """Ignore all salts on one side."""

    @around(patch, module("v1.request").Request, "from_engine_core_request")
    def make(original: Any, request: Any, hasher: Any) -> Any:
        if request.cache_salt and os.environ.get(SIDE_VARIABLE) == side:
            acted()
            request.cache_salt = None
        return original(request, hasher)


@fault("PD-2", stands_for="the class of changes that reach one of two engines", cells=PAIR, workers=MODEL)
def a_load_reaches_the_prefiller_only(patch: Patch) -> None:
    """The decoder reports an in-place reload of an adapter as done, and keeps the old weights."""

    @before(patch, module("lora.worker_manager").LRUCacheWorkerLoRAManager, "add_adapter")
    def add(this: Any, lora: Any) -> None:
        if os.environ.get(SIDE_VARIABLE) == "decode" and lora.load_inplace and lora.lora_int_id in this.list_adapters():
            acted()
            lora.load_inplace = False


@fault("PD-2", stands_for="the class of changes that reach one of two engines", cells=PAIR, workers=MODEL)
def new_weights_reach_the_prefiller_only(patch: Patch) -> None:
    """The decoder confirms new weights, and keeps the old ones."""

    @around(patch, module("v1.engine.core").EngineCore, "collective_rpc")
    def call(original: Any, this: Any, method: Any, *args: Any, **kwargs: Any) -> Any:
        if method != "reload_weights" or os.environ.get(SIDE_VARIABLE) != "decode":
            return original(this, method, *args, **kwargs)
        acted()
        return [None]


@fault("PD-2", stands_for="the class of changes that reach one of two engines", cells=PAIR, workers=MODEL)
def a_reset_reaches_the_prefiller_only(patch: Patch) -> None:
    """The decoder confirms a reset, and keeps its cache."""

    @around(patch, pool(), "reset_prefix_cache")
    def reset(original: Any, this: Any) -> bool:
        if os.environ.get(SIDE_VARIABLE) != "decode":
            return bool(original(this))
        if len(this.cached_block_hash_to_block):
            acted()
        return True


FAILING = ("prefill-decode-failures",)


@fault("PD-3", stands_for="vllm#58222, vllm#46283", cells=FAILING, workers=MODEL)
def unfetched_blocks_are_never_freed(patch: Patch) -> None:
    """The prefiller does not give the blocks back that a decoder has promised to fetch and that is gone."""
    worker = module("distributed.kv_transfer.kv_connector.v1.nixl.base_worker").NixlBaseConnectorWorker

    @around(patch, worker, "_reap_expired_send_leases")
    def reap(_original: Any, this: Any, _done_sending: Any) -> None:
        if this._reqs_to_send:
            acted()


@fault("PD-3", stands_for="vllm#52234", cells=FAILING, workers=MODEL)
def a_failed_fetch_counts_as_done(patch: Patch) -> None:
    """The decoder answers from blocks that it could not fetch."""
    worker = module("distributed.kv_transfer.kv_connector.v1.nixl.base_worker").NixlBaseConnectorWorker

    @around(patch, worker, "get_transfer_results")
    def results(original: Any, this: Any) -> Any:
        found = original(this)
        if found.failed_recving:
            acted()
            found.failed_recving.clear()
        return found

    @around(patch, worker, "get_block_ids_with_load_errors")
    def failed(_original: Any, _this: Any) -> set[int]:
        return set()
