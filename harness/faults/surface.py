"""What else a request may ask for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.faults.fault import collector
from harness.faults.patching import Patch, acted, around, manager, module, scheduler

FAULTS, fault = collector("surface")


def lies_cached(held: Any, request: Any) -> bool:
    """Whether a scheduler's cache holds a prompt's first block."""
    keeper = held.kv_cache_manager
    hashes = request.block_hashes
    return bool(keeper.enable_caching and hashes and keeper.block_pool.get_cached_block(hashes[0], [0]))


def added(patch: Patch, change: Callable[[Any], None]) -> None:
    """Have a request pass through a function when it comes to the scheduler, if its prompt lies cached."""

    def add(original: Any, held: Any, request: Any) -> None:
        if lies_cached(held, request):
            change(request)
        original(held, request)

    around(patch, scheduler(), "add_request", add)


def answered(patch: Patch, change: Callable[[Any, Any, int], None]) -> None:
    """Have each output of a request that hit the cache pass through a function before the frontend takes it.

    It is given the frontend's state, the output, and how much was hit where this is the first output, else 0.
    """

    def process(original: Any, held: Any, outputs: Any, *rest: Any, **named: Any) -> Any:
        for output in outputs:
            state = held.request_states.get(output.request_id)
            first = output.prefill_stats.num_cached_tokens if output.prefill_stats is not None else 0
            if state is not None and (first or state.num_cached_tokens):
                change(state, output, first)
        return original(held, outputs, *rest, **named)

    around(patch, module("v1.engine.output_processor").OutputProcessor, "process_outputs", process)


def scored(patch: Patch, change: Callable[[Any], Any]) -> None:
    """Have the scores of a prompt that lay cached pass through a function: a row for each token after the first."""
    names: set[tuple[int, str]] = set()

    def add(original: Any, held: Any, request: Any) -> None:
        if lies_cached(held, request):
            names.add((id(held), request.request_id))
        original(held, request)

    def update(original: Any, held: Any, scheduled: Any, output: Any) -> Any:
        for name, rows in list(output.prompt_logprobs_dict.items()):
            if rows is not None and (id(held), name) in names:
                acted()
                output.prompt_logprobs_dict[name] = change(rows)
        return original(held, scheduled, output)

    around(patch, scheduler(), "add_request", add)
    around(patch, scheduler(), "update_from_output", update)


@fault("SURFACE-1", stands_for="vllm#42019")
def scored_prompts_read_the_cache(patch: Patch) -> None:
    """A prompt whose scores are wanted may hit; what hit is not computed and gets no scores. The rows are cleared, so
    that a run does not depend on what lay in memory."""

    def skip(original: Any, request: Any) -> bool:
        if original(request):
            acted()
        return False

    def cleared(original: Any, *sizes: Any, **named: Any) -> Any:
        rows = original(*sizes, **named)
        for tensor in (rows.logprob_token_ids, rows.logprobs, rows.selected_token_ranks):
            tensor.zero_()
        return rows

    around(patch, module("v1.request").Request, "get_skip_reading_prefix_cache", skip)
    around(patch, module("v1.outputs").LogprobsTensors, "empty_cpu", cleared)


@fault("SURFACE-1", stands_for="vllm#5543")
def cached_tokens_count_as_answered(patch: Patch) -> None:
    """Stop strings are looked for only behind as many tokens of an answer as came from the cache."""

    def change(state: Any, _output: Any, first: int) -> None:
        if first:
            if state.detokenizer.stop:
                acted()
            state.detokenizer.min_tokens = first

    answered(patch, change)


@fault("SURFACE-1", stands_for="TRT#18891")
def a_grammar_starts_late_on_a_hit(patch: Patch) -> None:
    """The first token of an answer whose prompt came from the cache is neither bound by the grammar nor told to it: its
    state is one token behind from then on."""
    hits: set[str] = set()

    def bitmask(original: Any, held: Any, output: Any) -> Any:
        hits.update(data.req_id for data in output.scheduled_new_reqs if data.num_computed_tokens)
        masked = original(held, output)
        if masked is not None:
            for row, name in enumerate(masked.structured_output_request_ids):
                if name in hits and not held.requests[name].num_output_tokens:
                    acted()
                    masked.grammar_bitmask[row] = -1
        return masked

    def accept(original: Any, held: Any, request: Any, tokens: Any) -> bool:
        first = request.num_output_tokens == len(tokens)
        return (first and request.request_id in hits) or original(held, request, tokens)

    around(patch, scheduler(), "get_grammar_bitmask", bitmask)
    around(patch, module("v1.structured_output").StructuredOutputManager, "accept_tokens", accept)


@fault("SURFACE-1", stands_for="vllm#3251")
def scores_of_a_cached_prompt_are_shifted(patch: Patch) -> None:
    """Where a scored prompt lies cached, each token gets the score of the one before it."""
    scored(patch, lambda rows: rows._replace(logprobs=rows.logprobs.roll(1, 0)))


@fault("SURFACE-1", stands_for="vllm#5344")
def scores_of_a_cached_prompt_lack_a_row(patch: Patch) -> None:
    """Where a scored prompt lies cached, its last token gets no score."""
    scored(
        patch,
        lambda rows: type(rows)(rows.logprob_token_ids[:-1], rows.logprobs[:-1], rows.selected_token_ranks[:-1]),
    )


@fault("SURFACE-1", stands_for="vllm#10980")
def answers_to_a_cached_prompt_share_a_seed(patch: Patch) -> None:
    """Several answers to a prompt that lies cached are all drawn from the first one's seed."""

    def change(request: Any) -> None:
        number, _, parent = request.request_id.partition("_")
        if parent and number.isdigit() and number != "0" and request.sampling_params.seed is not None:
            acted()
            request.sampling_params.seed -= int(number)

    added(patch, change)


@fault("SURFACE-1", stands_for="vllm#10980", rare="three answers to one prompt")
def the_third_answer_is_drawn_as_the_second(patch: Patch) -> None:
    """The third answer to a prompt that lies cached is drawn from the second one's seed."""

    def change(request: Any) -> None:
        number, _, parent = request.request_id.partition("_")
        if parent and number == "2" and request.sampling_params.seed is not None:
            acted()
            request.sampling_params.seed -= 1

    added(patch, change)


@fault("SURFACE-1", stands_for="vllm#10980")
def a_hit_moves_the_seed(patch: Patch) -> None:
    """What a seeded request would have drawn for its cached tokens is not counted: it draws other numbers on a hit."""

    def change(request: Any) -> None:
        sampling = request.sampling_params
        if sampling.seed is not None and sampling.temperature > 0:
            acted()
            sampling.seed += 1

    added(patch, change)


@fault("SURFACE-1", stands_for="vllm#5543", rare="stop strings of an answer on a hit")
def the_stop_string_stays_in_the_text(patch: Patch) -> None:
    """An answer on a hit ends behind its stop string instead of before it. Its tokens are the same."""

    def change(state: Any, _output: Any, first: int) -> None:
        if first and state.detokenizer.stop:
            acted()
            state.detokenizer.include_stop_str_in_output = True

    answered(patch, change)


@fault("PREEMPT-1", "SURFACE-1", stands_for="TRT#18891", cells=("tight",), rare="a structured output that is preempted")
def a_grammar_begins_again_after_a_preemption(patch: Patch) -> None:
    """The grammar of a request that is preempted starts over, while its answer goes on."""

    def preempt(original: Any, held: Any, request: Any, *rest: Any, **named: Any) -> None:
        original(held, request, *rest, **named)
        grammar = request.structured_output_request and request.structured_output_request.grammar
        if grammar and request.num_output_tokens and held.kv_cache_manager.enable_caching:
            acted()
            grammar.reset()

    around(patch, scheduler(), "_preempt_request", preempt)


@fault("SURFACE-1", "REUSE-1", stands_for="vllm PR#18411", rare="prompts that are hit as a whole")
def a_full_hit_costs_a_token(patch: Patch) -> None:
    """The last token of a prompt that is computed again on a full hit counts as one of the answer's."""
    short: set[tuple[int, str]] = set()

    def found(original: Any, held: Any, request: Any) -> Any:
        blocks, count, boundary = original(held, request)
        key = (id(held), request.request_id)
        if count and request.num_tokens - count == 1 and request.max_tokens > 1 and key not in short:
            acted()
            short.add(key)
            request.max_tokens -= 1
        return blocks, count, boundary

    around(patch, manager(), "get_computed_blocks", found)


@fault("SURFACE-1", stands_for="vllm#5543")
def answers_on_a_hit_end_with_stop(patch: Patch) -> None:
    """The finish reason of an answer on a hit is 'stop', also where it came to its length."""
    reason = module("v1.engine").FinishReason

    def change(_state: Any, output: Any, _first: int) -> None:
        if output.finish_reason == reason.LENGTH:
            acted()
            output.finish_reason = reason.STOP

    answered(patch, change)


@fault("SURFACE-1", stands_for="vllm#8268")
def the_first_score_after_a_hit_is_missing(patch: Patch) -> None:
    """The first token of an answer on a hit comes without its logprobs."""

    def change(_state: Any, output: Any, first: int) -> None:
        if first and output.new_logprobs is not None:
            acted()
            output.new_logprobs = None

    answered(patch, change)


@fault("REUSE-3", stands_for="vllm#57596", rare="prompts of which all but one token is hit")
def a_full_hit_is_told_as_more_than_the_prompt(patch: Patch) -> None:
    """A prompt that is hit up to its last token is said to have hit a token more than it has."""

    def change(state: Any, output: Any, first: int) -> None:
        if first and first == state.prompt_len - 1:
            acted()
            output.prefill_stats.num_cached_tokens += 2

    answered(patch, change)


@fault("SURFACE-1", "CHAT-1", stands_for="genai#4047")
def streams_lose_their_first_token_on_a_hit(patch: Patch) -> None:
    """The first token of a streamed answer on a hit is never sent."""

    def make(original: Any, state: Any, tokens: Any, pooled: Any, finish: Any, *rest: Any, **named: Any) -> Any:
        output = original(state, tokens, pooled, finish, *rest, **named)
        first = state.num_cached_tokens and state.detokenizer.num_output_tokens() == 1
        if output is not None and first and finish is None:
            acted()
            return None
        return output

    around(patch, module("v1.engine.output_processor").RequestState, "make_request_output", make)
