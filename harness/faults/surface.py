"""What else a request may ask for."""

from __future__ import annotations

from typing import Any

from harness.faults.fault import collector
from harness.faults.patching import Patch, around, module, scheduler

FAULTS, fault = collector("surface")


@fault("SURFACE-1", stands_for="vllm#42019")
def scored_prompts_read_the_cache(patch: Patch) -> None:
    """A prompt whose scores are wanted may hit; what hit is not computed and gets no scores. The rows are cleared, so
    that a run does not depend on what lay in memory."""

    def cleared(original: Any, *sizes: Any, **named: Any) -> Any:
        rows = original(*sizes, **named)
        for tensor in (rows.logprob_token_ids, rows.logprobs, rows.selected_token_ranks):
            tensor.zero_()
        return rows

    patch.setattr(module("v1.request").Request, "get_skip_reading_prefix_cache", lambda _: False)
    around(patch, module("v1.outputs").LogprobsTensors, "empty_cpu", cleared)


@fault("SURFACE-1", stands_for="vllm#5543")
def cached_tokens_count_as_answered(patch: Patch) -> None:
    """Stop strings are looked for only behind as many tokens of an answer as came from the cache."""

    def process(original: Any, held: Any, outputs: Any, *rest: Any, **named: Any) -> Any:
        for output in outputs:
            state = held.request_states.get(output.request_id)
            if state is not None and output.prefill_stats is not None and output.prefill_stats.num_cached_tokens:
                state.detokenizer.min_tokens = output.prefill_stats.num_cached_tokens
        return original(held, outputs, *rest, **named)

    around(patch, module("v1.engine.output_processor").OutputProcessor, "process_outputs", process)


@fault("SURFACE-1", stands_for="TRT#18891")
def a_grammar_starts_late_on_a_hit(patch: Patch) -> None:
    """The first token of an answer whose prompt came from the cache is neither bound by the grammar nor told to it: its
    state is one token behind from then on (TRT#18891)."""
    hits: set[str] = set()

    def bitmask(original: Any, held: Any, output: Any) -> Any:
        hits.update(data.req_id for data in output.scheduled_new_reqs if data.num_computed_tokens)
        masked = original(held, output)
        if masked is not None:
            for row, name in enumerate(masked.structured_output_request_ids):
                if name in hits and not held.requests[name].num_output_tokens:
                    masked.grammar_bitmask[row] = -1
        return masked

    def accept(original: Any, held: Any, request: Any, tokens: Any) -> bool:
        first = request.num_output_tokens == len(tokens)
        return (first and request.request_id in hits) or original(held, request, tokens)

    around(patch, scheduler(), "get_grammar_bitmask", bitmask)
    around(patch, module("v1.structured_output").StructuredOutputManager, "accept_tokens", accept)
