"""Pooled answers: of the wrong state, too early, of another request, incomplete; keys without salt or adapter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coldproof.adapters.spec.fault import Patch, collector
from coldproof.adapters.vllm.faults.engine_parts import fingerprint_runner, manager, module, scheduler
from coldproof.adapters.vllm.faults.hit_watch import count_wrong_hits
from coldproof.adapters.vllm.faults.keys.block_hashes import utils
from coldproof.adapters.vllm.faults.patching import acted, around

FAULTS, fault = collector("pooled answers")

CHUNKED = ("pooling",)
DIGESTS = ("fingerprint",)


def change_pooled_state(patch: Patch, place: Callable[[Any], int]) -> None:
    """Compute the vector of a prompt that hit from the state at `place(step)` instead of the last one, where that is
    another one.
    """

    @around(patch, fingerprint_runner(), "pool")
    def pool(original: Any, this: Any) -> Any:
        for step in this.request_steps:
            sequence, wrong = step.sequence, place(step)
            if step.states and sequence.first_computed and wrong < step.end - 1:
                sequence.states[-1] = sequence.states[wrong]
                acted()
        return original(this)


@fault("POOL-1", stands_for="ascend#5725", cells=CHUNKED, workers=DIGESTS)
def a_hit_is_pooled_at_the_start_of_its_last_chunk(patch: Patch) -> None:
    """The vector of a prompt that hit is computed from the first token of the step that ends the prompt."""
    change_pooled_state(patch, lambda step: int(step.start))


@fault("POOL-1", stands_for="vllm#23436", cells=CHUNKED, workers=DIGESTS)
def a_hit_is_pooled_before_its_last_token(patch: Patch) -> None:
    """The vector of a prompt that hit is computed from the last token but one, if the last step has both."""
    change_pooled_state(patch, lambda step: max(int(step.start), int(step.end) - 2))


@fault("POOL-1", stands_for="vllm#23436", cells=CHUNKED, workers=DIGESTS)
def a_hit_is_pooled_without_its_last_chunk(patch: Patch) -> None:
    """A prompt that hit is answered after the chunk before its last one, with the state at the end of that chunk."""

    @around(patch, fingerprint_runner(), "pool")
    def pool(original: Any, this: Any) -> Any:
        early = [
            (i, step.sequence, step.end)
            for i, step in enumerate(this.request_steps)
            if step.sequence.first_computed and not step.states and not step.sequence.pooling.task.startswith("token_")
        ]
        output = original(this)
        for i, sequence, end in early:
            sequence.states[-1] = sequence.states[end - 1]
            output.pooler_output[i] = this.pooled(sequence)
            acted()
        return output


@fault("POOL-1", stands_for="a batch in the order of another one")
def vectors_of_one_step_are_swapped(patch: Patch) -> None:
    """Where two prompts end in one step, the first one gets the second one's vector and the second one the first's."""

    @around(patch, scheduler(), "update_from_output")
    def update(original: Any, this: Any, scheduled: Any, output: Any) -> Any:
        vectors = output.pooler_output or []
        ended = [i for i, vector in enumerate(vectors) if vector is not None and vector.dim() == 1]
        if len(ended) > 1:
            first, second = ended[:2]
            vectors[first], vectors[second] = vectors[second], vectors[first]
            acted()
        return original(this, scheduled, output)


@fault("POOL-1", stands_for="vllm#28194", cells=("pooling", "pooling-tokens"))
def vectors_of_each_token_read_the_cache(patch: Patch) -> None:
    """A request for a vector of each token hits the cache, so that the cached tokens have no vector."""

    @around(patch, module("v1.request").Request, "get_skip_reading_prefix_cache")
    def skips(original: Any, this: Any) -> bool:
        skipped = bool(original(this))
        if this.pooling_params is None:
            return skipped
        if skipped:
            acted()
        return False


@fault("POOL-1", stands_for="vllm#28194", cells=("pooling", "pooling-tokens"))
def a_vector_of_a_prompt_in_chunks_is_lost(patch: Patch) -> None:
    """Where a prompt is computed in several steps and each token has a vector, that of the first token is lost."""

    @around(patch, scheduler(), "update_from_output")
    def update(original: Any, this: Any, scheduled: Any, output: Any) -> Any:
        for i, vectors in enumerate(output.pooler_output or []):
            if vectors is None or vectors.dim() == 1:
                continue
            if scheduled.num_scheduled_tokens[output.req_ids[i]] < len(vectors):
                output.pooler_output[i] = vectors[1:]
                acted()
        return original(this, scheduled, output)


@fault("POOL-1", stands_for="an end of a hit that is rounded up")
def a_hit_for_a_vector_is_one_block_too_long(patch: Patch) -> None:
    """A prompt that hit for a vector also uses its last cached block in place of the next block."""

    @around(patch, manager(), "get_computed_blocks")
    def found(original: Any, this: Any, request: Any) -> Any:
        blocks, count, *rest = original(this, request)
        size = this.coordinator.single_type_managers[0].block_size
        if request.pooling_params is None or not count or count + size >= request.num_tokens:
            return (blocks, count, *rest)
        acted()
        longer = tuple([*group, group[-1]] for group in blocks.blocks)
        return (type(blocks)(longer), count + size, *rest)


def change_keys_of_vectors(patch: Patch, kind: str) -> None:
    """Leave one kind of key out of the hashes of requests for pooled answers."""

    @around(patch, utils(), "generate_block_hash_extra_keys")
    def keys(original: Any, request: Any, *rest: Any) -> Any:
        if request.pooling_params is None:
            return original(request, *rest)
        return original(Without(request, kind), *rest)

    count_wrong_hits(patch)


class Without:
    """A request without one of its fields."""

    def __init__(self, request: Any, field: str) -> None:
        self._request, self._field = request, field

    def __getattr__(self, name: str) -> Any:
        return None if name == self._field else getattr(self._request, name)


@fault("POOL-1", stands_for="vllm PR#47696")
def requests_for_vectors_lose_their_salt(patch: Patch) -> None:
    """The blocks of requests for pooled answers are shared by all salts."""
    change_keys_of_vectors(patch, "cache_salt")


@fault("POOL-1", stands_for="vllm PR#47696, at the routes for scores", cells=("pooling-scores",))
def the_score_routes_drop_the_salt(patch: Patch) -> None:
    """A server's routes for scores and ranks do not pass the salt of a request on."""
    drop_the_salt(patch, "CrossEncoderIOProcessor")


@fault("POOL-1", stands_for="vllm PR#47696, at the route for cosines", cells=("pooling",))
def the_cosine_route_drops_the_salt(patch: Patch) -> None:
    """A server's route for scores does not pass the salt of a request on where a score is made of two embeddings."""
    drop_the_salt(patch, "BiEncoderIOProcessor")


def drop_the_salt(patch: Patch, processor: str) -> None:
    """Render the prompts of a processor of scores without their salt."""

    @around(patch, getattr(module("entrypoints.pooling.scoring.io_processor"), processor), "render")
    def render(original: Any, this: Any, params: Any) -> Any:
        extras = params.get("prompt_extras") or {}
        if extras.get("cache_salt") is not None:
            acted()
            params = {**params, "prompt_extras": {**extras, "cache_salt": None}}
        return original(this, params)


@fault("POOL-1", stands_for="vllm PR#47696")
def requests_for_vectors_lack_the_adapter(patch: Patch) -> None:
    """The blocks of requests for pooled answers are shared by all adapters and the base model."""
    change_keys_of_vectors(patch, "lora_request")
