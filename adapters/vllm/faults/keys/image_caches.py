"""Caches of images beside the prefix cache that are not reset, are reset in one of two places, or know no adapter."""

from __future__ import annotations

from typing import Any

from coldproof.adapters.spec.fault import Patch, collector
from coldproof.adapters.vllm.faults.engine_parts import module
from coldproof.adapters.vllm.faults.patching import acted, around

FAULTS, fault = collector("image_caches")

CELLS, TOWERS, WORKERS = ("images",), ("images-towers",), ("fingerprint",)


@fault("MM-4", stands_for="sglang#26792, for the encoder's cache", cells=CELLS, workers=WORKERS)
def a_reset_keeps_the_encoders_outputs(patch: Patch) -> None:
    """The reset of the encoder cache is confirmed, and nothing happens."""

    @around(patch, module("v1.engine.async_llm").AsyncLLM, "reset_encoder_cache")
    async def nothing(_original: Any, _this: Any) -> None:
        acted()


@fault("MM-4", stands_for="caches that desync, as vLLM's own warning says", cells=CELLS, workers=WORKERS)
def the_scheduler_remembers_outputs_that_were_reset(patch: Patch) -> None:
    """The reset of the encoder cache empties the worker's part of it, and not the scheduler's."""

    @around(patch, module("v1.core.sched.scheduler").Scheduler, "reset_encoder_cache")
    def nothing(_original: Any, _this: Any) -> None:
        acted()


@fault("MM-4", stands_for="a pause that clears the prefix cache only", cells=CELLS, workers=WORKERS)
def a_pause_keeps_the_encoders_outputs(patch: Patch) -> None:
    """A pause or a sleep that clears the caches empties the prefix cache only."""

    @around(patch, module("v1.engine.core").EngineCore, "_reset_caches")
    def reset(original: Any, this: Any, *args: Any, **named: Any) -> None:
        core = type(this)
        kept, core.reset_encoder_cache = core.reset_encoder_cache, lambda _this: acted()
        try:
            original(this, *args, **named)
        finally:
            core.reset_encoder_cache = kept


@fault("MM-4", stands_for="caches that desync, as vLLM's own warning says", cells=CELLS, workers=WORKERS)
def the_frontend_remembers_images_that_were_reset(patch: Patch) -> None:
    """The reset of the processor's cache empties the engine's part of it, and not the frontend's, which sends no pixels
    of images that it remembers.
    """

    @around(patch, module("v1.engine.async_llm").AsyncLLM, "reset_mm_cache")
    async def reset(_original: Any, this: Any) -> None:
        acted()
        await this.engine_core.reset_mm_cache_async()


@fault("MM-4", stands_for="vllm#44939", cells=TOWERS, workers=WORKERS)
def towers_share_their_outputs(patch: Patch) -> None:
    """The key of an encoder's output has no adapter, also where adapters change the vision tower."""

    @around(patch, module("v1.engine.input_processor").InputProcessor, "_get_mm_identifier")
    def key(original: Any, this: Any, mm_hash: str, lora: Any) -> str:
        if original(this, mm_hash, lora) != mm_hash:
            acted()
        return mm_hash
