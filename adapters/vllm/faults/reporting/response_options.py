"""Response options: prompt logprobs, several answers, stop strings, structured output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coldproof.adapters.spec.fault import Patch, collector
from coldproof.adapters.vllm.faults.engine_parts import module, scheduler
from coldproof.adapters.vllm.faults.patching import TIGHT, acted, after, after_lookup, around, before

FAULTS, fault = collector("response options")


def is_cached(this: Any, request: Any) -> bool:
    """Return whether a scheduler's cache contains the first block of a prompt."""
    keeper = this.kv_cache_manager
    hashes = request.block_hashes
    return bool(keeper.enable_caching and hashes and keeper.block_pool.get_cached_block(hashes[0], [0]))


def shift_seeds(patch: Patch, shift: Callable[[Any, int], int]) -> None:
    """Add `shift(sampling parameters, number of the answer)` to the seed of each request whose prompt is cached."""

    @before(patch, scheduler(), "add_request")
    def add(this: Any, request: Any) -> None:
        number, _, parent = request.request_id.partition("_")
        sampling = request.sampling_params
        by = shift(sampling, int(number) if parent and number.isdigit() else 0)
        if by and sampling.seed is not None and is_cached(this, request):
            acted()
            sampling.seed += by


def change_outputs(patch: Patch, change: Callable[[Any, Any, int], None]) -> None:
    """Call `change(state, output, hit)` with each output of a request that hit the cache, before the frontend processes
    it.

    `state` is the frontend's state. `hit` is the number of cached tokens at the first output, otherwise 0.
    """

    @before(patch, module("v1.engine.output_processor").OutputProcessor, "process_outputs")
    def process(this: Any, outputs: Any, *_: Any, **__: Any) -> None:
        for output in outputs:
            state = this.request_states.get(output.request_id)
            first = output.prefill_stats.num_cached_tokens if output.prefill_stats is not None else 0
            if state is not None and (first or state.num_cached_tokens):
                change(state, output, first)


def change_prompt_logprobs(patch: Patch, change: Callable[[Any], Any]) -> None:
    """Pass the prompt logprobs of a cached prompt through `change`: one row for each token after the first."""
    names: set[tuple[int, str]] = set()

    @before(patch, scheduler(), "add_request")
    def add(this: Any, request: Any) -> None:
        if is_cached(this, request):
            names.add((id(this), request.request_id))

    @before(patch, scheduler(), "update_from_output")
    def update(this: Any, _scheduled: Any, output: Any) -> None:
        for name, rows in list(output.prompt_logprobs_dict.items()):
            if rows is not None and (id(this), name) in names:
                acted()
                output.prompt_logprobs_dict[name] = change(rows)


@fault("SURFACE-1", stands_for="vllm#42019")
def scored_prompts_read_the_cache(patch: Patch) -> None:
    """A request with prompt logprobs may hit the cache; tokens that were hit get no logprobs. The rows are cleared, so
    that a run does not depend on earlier memory content.
    """

    @around(patch, module("v1.request").Request, "get_skip_reading_prefix_cache")
    def skip(original: Any, request: Any) -> bool:
        if original(request):
            acted()
        return False

    @after(patch, module("v1.outputs").LogprobsTensors, "empty_cpu")
    def cleared(rows: Any, *_: Any, **__: Any) -> None:
        for tensor in (rows.logprob_token_ids, rows.logprobs, rows.selected_token_ranks):
            tensor.zero_()


@fault("SURFACE-1", stands_for="vllm#5543")
def cached_tokens_count_as_answered(patch: Patch) -> None:
    """Stop strings are ignored in the first tokens of an answer, as many as came from the cache."""

    def change(state: Any, _output: Any, first: int) -> None:
        if first:
            if state.detokenizer.stop:
                acted()
            state.detokenizer.min_tokens = first

    change_outputs(patch, change)


@fault("SURFACE-1", stands_for="TRT#18891")
def a_grammar_starts_late_on_a_hit(patch: Patch) -> None:
    """On a hit, the grammar ignores the first token of the answer, so that its state is one token late from then on."""
    hits: set[str] = set()

    @around(patch, scheduler(), "get_grammar_bitmask")
    def bitmask(original: Any, this: Any, output: Any) -> Any:
        hits.update(data.req_id for data in output.scheduled_new_reqs if data.num_computed_tokens)
        masked = original(this, output)
        if masked is not None:
            for row, name in enumerate(masked.structured_output_request_ids):
                if name in hits and not this.requests[name].num_output_tokens:
                    acted()
                    masked.grammar_bitmask[row] = -1
        return masked

    @around(patch, module("v1.structured_output").StructuredOutputManager, "accept_tokens")
    def accept(original: Any, this: Any, request: Any, tokens: Any) -> bool:
        first = request.num_output_tokens == len(tokens)
        return (first and request.request_id in hits) or original(this, request, tokens)


@fault("SURFACE-1", stands_for="vllm#3251")
def scores_of_a_cached_prompt_are_shifted(patch: Patch) -> None:
    """On a cached prompt, each token gets the prompt logprob of the token before it."""
    change_prompt_logprobs(patch, lambda rows: rows._replace(logprobs=rows.logprobs.roll(1, 0)))


@fault("SURFACE-1", stands_for="vllm#5344")
def scores_of_a_cached_prompt_lack_a_row(patch: Patch) -> None:
    """On a cached prompt, the last token gets no prompt logprob."""
    change_prompt_logprobs(
        patch,
        lambda rows: type(rows)(rows.logprob_token_ids[:-1], rows.logprobs[:-1], rows.selected_token_ranks[:-1]),
    )


@fault("SURFACE-1", stands_for="vllm#10980")
def answers_to_a_cached_prompt_share_a_seed(patch: Patch) -> None:
    """Several answers to a cached prompt are all sampled with the first one's seed."""
    shift_seeds(patch, lambda _sampling, number: -number)


@fault("SURFACE-1", stands_for="vllm#10980", rare="only for three answers to one prompt")
def the_third_answer_is_drawn_as_the_second(patch: Patch) -> None:
    """The third answer to a cached prompt is sampled with the second one's seed."""
    shift_seeds(patch, lambda _sampling, number: -1 if number == 2 else 0)


@fault("SURFACE-1", stands_for="vllm#10980")
def a_hit_moves_the_seed(patch: Patch) -> None:
    """The random numbers that a seeded request would have drawn for its cached tokens are not skipped, so that a hit
    changes its samples.
    """
    shift_seeds(patch, lambda sampling, _number: 1 if sampling.temperature > 0 else 0)


@fault("SURFACE-1", stands_for="vllm#5543", rare="only for stop strings of an answer on a hit")
def the_stop_string_stays_in_the_text(patch: Patch) -> None:
    """The text of an answer on a hit includes its stop string. Its tokens are correct."""

    def change(state: Any, _output: Any, first: int) -> None:
        if first and state.detokenizer.stop:
            acted()
            state.detokenizer.include_stop_str_in_output = True

    change_outputs(patch, change)


@fault(
    "PREEMPT-1", "SURFACE-1", stands_for="TRT#18891", cells=TIGHT, rare="only for a structured output that is preempted"
)
def a_grammar_begins_again_after_a_preemption(patch: Patch) -> None:
    """The grammar of a preempted request starts again, while its answer continues."""

    @after(patch, scheduler(), "_preempt_request")
    def preempt(_result: Any, this: Any, request: Any, *_: Any, **__: Any) -> None:
        grammar = request.structured_output_request and request.structured_output_request.grammar
        if grammar and request.num_output_tokens and this.kv_cache_manager.enable_caching:
            acted()
            grammar.reset()


@fault("SURFACE-1", "REUSE-1", stands_for="vllm PR#18411", rare="only for prompts that are hit as a whole")
def a_full_hit_costs_a_token(patch: Patch) -> None:
    """On a full hit, the prompt token that is computed again counts as a token of the answer."""
    short: set[tuple[int, str]] = set()

    @after_lookup(patch)
    def found(this: Any, request: Any, _blocks: Any, count: int) -> None:
        key = (id(this), request.request_id)
        if count and request.num_tokens - count == 1 and request.max_tokens > 1 and key not in short:
            acted()
            short.add(key)
            request.max_tokens -= 1


@fault("SURFACE-1", stands_for="vllm#5543")
def answers_on_a_hit_end_with_stop(patch: Patch) -> None:
    """The finish reason of an answer on a hit is always 'stop', also where it reached its maximum length."""
    reason = module("v1.engine").FinishReason

    def change(_state: Any, output: Any, _first: int) -> None:
        if output.finish_reason == reason.LENGTH:
            acted()
            output.finish_reason = reason.STOP

    change_outputs(patch, change)


@fault("SURFACE-1", stands_for="vllm#8268")
def the_first_score_after_a_hit_is_missing(patch: Patch) -> None:
    """The first token of an answer on a hit has no logprobs."""

    def change(_state: Any, output: Any, first: int) -> None:
        if first and output.new_logprobs is not None:
            acted()
            output.new_logprobs = None

    change_outputs(patch, change)


@fault("REUSE-3", stands_for="vllm#57596", rare="only for prompts that are hit up to the last token")
def a_full_hit_is_reported_as_more_than_the_prompt(patch: Patch) -> None:
    """A prompt that is hit up to its last token reports more cached tokens than it has tokens."""

    def change(state: Any, output: Any, first: int) -> None:
        if first and first == state.prompt_len - 1:
            acted()
            output.prefill_stats.num_cached_tokens += 2

    change_outputs(patch, change)


@fault("SURFACE-1", "CHAT-1", stands_for="genai#4047")
def streams_lose_their_first_token_on_a_hit(patch: Patch) -> None:
    """The first token of a streamed answer on a hit is never sent."""

    @around(patch, module("v1.engine.output_processor").RequestState, "make_request_output")
    def make(original: Any, state: Any, tokens: Any, pooled: Any, finish: Any, *rest: Any, **kwargs: Any) -> Any:
        output = original(state, tokens, pooled, finish, *rest, **kwargs)
        first = state.num_cached_tokens and state.detokenizer.num_output_tokens() == 1
        if output is not None and first and finish is None:
            acted()
            return None
        return output
