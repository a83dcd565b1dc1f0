"""Changes that reach one of several ranks only, and ranks that answer or cache in a way of their own."""

from __future__ import annotations

from typing import Any

from coldproof.adapters.spec.fault import Patch, collector
from coldproof.adapters.vllm.faults.engine_parts import module
from coldproof.adapters.vllm.faults.patching import acted, around, before

FAULTS, fault = collector("ranks")
DATA, TENSOR = ("dp2",), ("tp2",)
ONE_RANK = "the class of changes that reach one of several ranks"


def client(kind: str) -> Any:
    """Return a class with which the server talks to its engine cores."""
    return getattr(module("v1.engine.core_client"), f"{kind}MPClient")


def replace_calls(patch: Patch, method: str) -> None:
    """Send calls of a method of the engine core to the first rank only."""

    @around(patch, client("Async"), "call_utility_all_async")
    async def call(original: Any, this: Any, name: str, *args: Any) -> Any:
        if name != method or len(this.core_engines) == 1:
            return await original(this, name, *args)
        acted()
        return [await this._call_utility_async(name, *args, engine=this.core_engines[0])]


@fault("DIST-1", stands_for=ONE_RANK, cells=DATA)
def a_load_reaches_the_first_rank_only(patch: Patch) -> None:
    """A load of an adapter that reports success is sent to rank 0 only. Other ranks read the files when they first
    need them, and keep what they have in an in-place reload."""
    replace_calls(patch, "add_lora")

    @around(patch, module("v1.engine.core").EngineCoreProc, "preprocess_add_request")
    def add(original: Any, this: Any, request: Any) -> Any:
        if this.engine_index and request.lora_request is not None:
            request.lora_request.load_inplace = False  # nor do its requests load the files again
        return original(this, request)


@fault("DIST-1", stands_for=ONE_RANK, cells=DATA)
def a_reset_reaches_the_first_rank_only(patch: Patch) -> None:
    """A cache reset that reports success is sent to rank 0 only."""
    replace_calls(patch, "reset_prefix_cache")


@fault("DIST-1", stands_for=ONE_RANK, cells=DATA)
def new_weights_reach_the_first_rank_only(patch: Patch) -> None:
    """An update of the weights that reports success is sent to rank 0 only."""
    replace_calls(patch, "collective_rpc")


@fault("DIST-1", stands_for=ONE_RANK, cells=DATA)
def a_pause_clears_the_first_rank_only(patch: Patch) -> None:
    """A pause that should clear the cache clears that of rank 0 only."""

    @around(patch, module("v1.engine.core").EngineCoreProc, "_finish_pause")
    def finish(original: Any, this: Any, clear_cache: bool) -> None:
        kept = clear_cache and bool(this.engine_index)
        if kept:
            acted()
        original(this, clear_cache and not kept)


@fault("DIST-2", stands_for="the class of routers that ignore what a client chose", cells=DATA)
def the_chosen_rank_is_ignored(patch: Patch) -> None:
    """Each request is served by rank 0."""

    @around(patch, client("DPLBAsync"), "get_core_engine_for_request")
    def choose(original: Any, this: Any, request: Any) -> Any:
        if request.data_parallel_rank:
            acted()
            request.data_parallel_rank = 0
        return original(this, request)


@fault(
    "DIST-2",
    stands_for="the class of ranks of one layer that disagree about which blocks are cached",
    cells=TENSOR,
    workers=("model",),
)
def one_rank_reads_another_block(patch: Patch) -> None:
    """On a hit, the second rank of each layer reads its part of the first block from the last block of the request."""
    parallel = module("distributed.parallel_state")

    @before(patch, module("v1.worker.gpu_model_runner").GPUModelRunner, "_update_states")
    def update(_runner: Any, scheduled: Any) -> None:
        for new in scheduled.scheduled_new_reqs if parallel.get_tensor_model_parallel_rank() else ():
            blocks = new.block_ids[0]
            if new.num_computed_tokens and len(blocks) > 1:
                acted()
                blocks[0] = blocks[-1]
