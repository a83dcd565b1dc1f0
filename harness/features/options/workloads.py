"""Requests with response options for prompts that are cached, between plain requests for the same prompt."""

from __future__ import annotations

from hypothesis import strategies as st

from coldproof.adapters.protocol.requests import PLAIN, ResponseOptions
from coldproof.harness.workload.generators.prompts import WorkloadLimits, stems
from coldproof.harness.workload.steps import Burst, Prompt, Request, Segment, Step, Workload

# A random model generates any of them at some point; one of several usually ends an answer within forty tokens.
STOPS = (tuple("etao"), tuple("3579"), tuple("KLMN"))  # at most four, as in OpenAI's API
PATTERNS = ("[a-f]{4,12}", "(yes|no)", "[0-9]{3}-[0-9]{3}")

PROMPT_LOGPROBS = st.just(ResponseOptions(prompt_logprobs=True))
SEVERAL_ANSWERS = st.builds(ResponseOptions, answers=st.sampled_from((2, 3)))
STOP_STRINGS = st.builds(ResponseOptions, stop=st.sampled_from(STOPS), logprobs=st.booleans())
STRUCTURED = st.builds(ResponseOptions, pattern=st.sampled_from(PATTERNS))


def tokens_for(response_options: ResponseOptions) -> int:
    """Return how many tokens to generate: enough to reach a stop string, or the end of a pattern."""
    return 40 if response_options.stop or response_options.pattern else 8


@st.composite
def with_response_options(
    draw: st.DrawFn, limits: WorkloadLimits, response_options: st.SearchStrategy[ResponseOptions]
) -> Workload:
    """Draw a plain request, one with response options, and a plain one; then more of both, some concurrent."""
    prompt = Prompt((draw(stems(limits)),))
    kinds = [PLAIN, draw(response_options), PLAIN]
    for _ in range(draw(st.integers(0, limits.most(3)))):
        kinds.append(draw(st.one_of(response_options, st.just(PLAIN))))
    steps: list[Step] = []
    for kind in kinds:
        request = Request(prompt=prompt, max_tokens=tokens_for(kind), options=kind)
        # Sometimes two requests for scores at once: vLLM 0.32.0's CPU build dies of them with LoRA and a Llama model.
        also = draw(st.sampled_from((PLAIN, kind))) if kind.prompt_logprobs else PLAIN
        longer = Prompt((*prompt.segments, Segment("beside", 5)))
        beside = Request(prompt=longer, max_tokens=12 if also == PLAIN else tokens_for(also), options=also)
        steps.append(Burst(requests=(request, beside) if draw(st.sampled_from((False, False, True))) else (request,)))
    return Workload(tuple(steps))
