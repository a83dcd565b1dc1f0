"""Speculative decoding after a hit: a draft model without its KV, drafts that are lost, shifted or not verified."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from coldproof.adapters.spec.fault import Patch, collector
from coldproof.adapters.vllm.faults.engine_parts import fingerprint_runner, manager, module, scheduler
from coldproof.adapters.vllm.faults.patching import acted, after, after_lookup, around, before

FAULTS, fault = collector("drafts")

N_GRAM, DRAFT_MODEL = ("speculative",), ("speculative-model",)
DRAFT_LAYERS = "draft_model."  # before the names of a draft model's layers


def lose_draft_kv(patch: Patch, which: Callable[[list[int]], list[int]]) -> None:
    """Empty the draft model's layers in `which(blocks)` of the blocks that a new request hit, with both workers."""

    def hit_blocks(scheduled: Any, size: int) -> list[int]:
        return [
            block
            for new in scheduled.scheduled_new_reqs
            for block in which(list(new.block_ids[0][: new.num_computed_tokens // size]))
        ]

    @after(patch, module("v1.worker.gpu_model_runner").GPUModelRunner, "_update_states")
    def update_model(_result: Any, this: Any, scheduled: Any, *_: Any, **__: Any) -> None:
        lost = hit_blocks(scheduled, this.cache_config.block_size)
        for name, layer in this.compilation_config.static_forward_context.items() if lost else ():
            if name.startswith(DRAFT_LAYERS):
                layer.kv_cache[lost] = 0
                acted()

    @after(patch, fingerprint_runner(), "update_requests")
    def update_digests(_result: Any, this: Any, scheduled: Any) -> None:
        for layer in this.draft_model.layers.values():
            lost = hit_blocks(scheduled, layer.block)
            if lost:
                layer.slots[lost] = 0
                acted()


@fault("SPEC-1", stands_for="a connector or a copy that knows the layers of the model only", cells=DRAFT_MODEL)
def a_hit_lacks_the_draft_models_kv(patch: Patch) -> None:
    """The blocks that a request hits have the KV of the model, and none of the draft model."""
    lose_draft_kv(patch, lambda blocks: blocks)


@fault("SPEC-1", stands_for="the block that a hit leaves out for EAGLE", cells=DRAFT_MODEL)
def the_last_block_of_a_hit_lacks_the_draft_models_kv(patch: Patch) -> None:
    """The last block that a request hits has no KV of the draft model."""
    lose_draft_kv(patch, lambda blocks: blocks[-1:])


@fault("SPEC-1", stands_for="vllm PR#17137: the block that a hit leaves out for EAGLE", cells=("speculative-eagle",))
def hits_keep_the_last_block_of_an_eagle_head(patch: Patch) -> None:
    """A hit has the last block that is there, which an EAGLE head has computed with another token behind it."""

    @around(patch, module("config.speculative").SpeculativeConfig, "use_eagle_block_drop")
    def drops(original: Any, this: Any) -> bool:
        if original(this):
            acted()
        return False


def change_drafts_of_hits(patch: Patch, change: Callable[[list[int]], list[int]]) -> None:
    """Replace the drafts of requests that hit by `change(drafts)`."""

    @after_lookup(patch)
    def found(_this: Any, request: Any, _blocks: Any, count: int) -> None:
        request.hit = count > 0

    @around(patch, scheduler(), "update_draft_token_ids")
    def update(original: Any, this: Any, drafts: Any) -> None:
        rows = []
        for name, row in zip(drafts.req_ids, drafts.draft_token_ids, strict=True):
            request = this.requests.get(name)
            hit = row and request is not None and getattr(request, "hit", False)
            rows.append(change(list(row)) if hit else row)
            if hit:
                acted()
        original(this, type(drafts)(drafts.req_ids, rows))


@fault("SPEC-1", stands_for="drafting that is skipped on one path", cells=DRAFT_MODEL)
def a_request_that_hit_gets_no_drafts(patch: Patch) -> None:
    """A request that hit is decoded token by token."""
    change_drafts_of_hits(patch, lambda _drafts: [])


@fault("SPEC-1", stands_for="positions of drafts that are off by one after a hit", cells=DRAFT_MODEL)
def the_drafts_of_a_hit_are_shifted(patch: Patch) -> None:
    """The drafts for a request that hit are those for the position after the next one."""
    change_drafts_of_hits(patch, lambda drafts: [*drafts[1:], drafts[0]])


@fault(
    "SPEC-1",
    stands_for="a verification that reads the scores of the cached part",
    cells=(*N_GRAM, *DRAFT_MODEL),
    workers=("fingerprint",),
)
def the_drafts_of_a_hit_are_not_verified(patch: Patch) -> None:
    """All drafts of a request that hit are accepted, also wrong ones."""
    runner = fingerprint_runner()

    @after(patch, runner, "update_requests")
    def update(_result: Any, this: Any, scheduled: Any) -> None:
        for new in scheduled.scheduled_new_reqs:
            this.sequences[new.req_id].hit = new.num_computed_tokens > 0

    @around(patch, runner, "sample_request")
    def sample(original: Any, this: Any, step: Any, allowed: Any) -> Any:
        sequence = step.sequence
        if not step.drafts or not sequence.hit:
            return original(this, step, allowed)
        drawn = [this.scores.sample(s, sequence.sampling, sequence.length, b"", None) for s in step.states]
        kept = [msgspec.structs.replace(one, token=d) for one, d in zip(drawn, step.drafts, strict=False)]
        if any(one.token != right.token for one, right in zip(kept, drawn, strict=False)):
            acted()
        sequence.output += [one.token for one in (*kept, drawn[-1])]
        return [*kept, drawn[-1]]


@fault(
    "SPEC-1",
    stands_for="vllm#54193 with speculative decoding",
    cells=(*N_GRAM, *DRAFT_MODEL),
    rare="only for an answer that ends at the end of a block, where a draft was rejected in its last step",
)
def the_slot_of_a_rejected_draft_is_published(patch: Patch) -> None:
    """A block is published including the slot of the last sampled token, if it holds the KV of a rejected draft."""

    @around(patch, scheduler(), "update_from_output")
    def update(original: Any, this: Any, scheduled: Any, output: Any) -> Any:
        for name, drafts in scheduled.scheduled_spec_decode_tokens.items():
            if name in this.requests and name in output.req_id_to_index:
                sampled = output.sampled_token_ids[output.req_id_to_index[name]]
                this.requests[name].rejected = len(sampled) <= len(drafts)
        return original(this, scheduled, output)

    @before(patch, manager(), "free")
    def free(this: Any, request: Any) -> None:
        if getattr(request, "rejected", False) and this.enable_caching:
            if request.num_tokens % this.block_pool.hash_block_size == 0:
                acted()
            this.cache_blocks(request, request.num_tokens)
