"""Bugs of the past: what a request brings along, its salt, its images and its drafts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from coldproof.adapters.spec.fault import Patch, collector
from coldproof.adapters.vllm.faults.engine_parts import manager, module, scheduler
from coldproof.adapters.vllm.faults.keys.endpoints import change_salt_at
from coldproof.adapters.vllm.faults.patching import acted, after, around, before, state_of

FAULTS, fault = collector("past_requests")
COMPLETIONS = "cmpl-"  # begins the ids of requests to /v1/completions
DRAFTS = "drafts_of_this_step"


@fault("SALT-1", stands_for="vllm PR#20981", cells=("default",), workers=("model",))
def the_completions_route_drops_the_salt(patch: Patch) -> None:
    """The endpoint for completions does not pass the salt of a request on."""
    change_salt_at(patch, COMPLETIONS, lambda _: None)


@fault("MM-2", "MM-1", stands_for="vllm PR#49975", cells=("images",))
def images_of_two_modes_have_one_hash(patch: Patch) -> None:
    """The key of an image has its bytes, and not how they are read: its mode, palette and background."""
    ways: dict[bytes, set[bytes]] = {}  # a hash of the bytes -> those of how they were read

    @around(patch, module("multimodal.hasher").MultiModalHasher, "iter_item_to_bytes")
    def serialize(original: Any, key: str, item: Any) -> Any:
        if key != "image" or not isinstance(item, dict):
            return original(key, item)
        pixels = {"data": item["data"]}
        seen = ways.setdefault(digest(original(key, pixels)), set())
        seen.add(digest(original(key, item)))
        if len(seen) > 1:
            acted()
        return original(key, pixels)


def digest(chunks: Iterable[Any]) -> bytes:
    """Return a hash of what a hasher would read."""
    return hashlib.sha256(b"".join(bytes(chunk) for chunk in chunks)).digest()


@fault("PREEMPT-1", "MIXED-2", stands_for="vllm PR#28558", cells=("priority+drafts",))
def drafts_of_a_preempted_request_stay_scheduled(patch: Patch) -> None:
    """A request that is preempted in the step in which it was scheduled keeps its place among the drafts."""

    @before(patch, scheduler(), "schedule")
    def begin(this: Any, *_: Any, **__: Any) -> None:
        drafts = {request.request_id: list(request.spec_token_ids) for request in this.running}
        state_of(this, DRAFTS, dict)
        setattr(this, DRAFTS, (drafts, {}))

    @before(patch, scheduler(), "_preempt_request")
    def preempt(this: Any, request: Any, *_: Any, **__: Any) -> None:
        drafts, lost = getattr(this, DRAFTS, ({}, {}))
        if drafts.get(request.request_id) and not request.spec_token_ids:
            lost[request.request_id] = drafts[request.request_id]

    @after(patch, scheduler(), "schedule")
    def end(output: Any, this: Any, *_: Any, **__: Any) -> None:
        _, lost = getattr(this, DRAFTS)
        if lost:
            acted()
            output.scheduled_spec_decode_tokens.update(lost)


@fault("SPEC-1", "MIXED-2", stands_for="vllm#19459", cells=("speculative",))
def blocks_of_drafts_are_cached(patch: Patch) -> None:
    """A block that drafts fill is cached before they are verified."""

    @after(patch, manager(), "allocate_slots")
    def allocated(blocks: Any, this: Any, request: Any, tokens: int, *_: Any, **__: Any) -> None:
        drafts = [token for token in request.spec_token_ids if token >= 0]
        if blocks is None or not drafts or not this.enable_caching:
            return
        known, hashes = request.num_tokens, len(request.block_hashes)
        request._all_token_ids.extend(drafts)
        request.update_block_hashes()
        if len(request.block_hashes) > hashes:
            acted()
            this.coordinator.cache_blocks(request, min(request.num_computed_tokens + tokens, request.num_tokens))
        del request._all_token_ids[known:]
        del request.block_hashes[hashes:]
