"""Requests that ask for more than tokens, on prompts that lie cached, between plain requests for the same prompt."""

from __future__ import annotations

from hypothesis import strategies as st

from adapters.base import PLAIN, Surface
from harness.generators.prompts import Grounds, stems
from harness.workload import Burst, Prompt, Request, Segment, Step, Workload

# A random model writes any of them sooner or later; one of several mostly ends an answer within forty tokens.
STOPS = (tuple("etao"), tuple("3579"), tuple("KLMN"))  # four at most, as in OpenAI's interface
PATTERNS = ("[a-f]{4,12}", "(yes|no)", "[0-9]{3}-[0-9]{3}")


PROMPT_LOGPROBS = st.just(Surface(prompt_logprobs=True))
SEVERAL_ANSWERS = st.builds(Surface, answers=st.sampled_from((2, 3)))
STOP_STRINGS = st.builds(Surface, stop=st.sampled_from(STOPS), logprobs=st.booleans())
STRUCTURED = st.builds(Surface, pattern=st.sampled_from(PATTERNS))


def tokens_for(surface: Surface) -> int:
    """Tokens to generate: enough to come upon a stop string, or to the end of a pattern."""
    return 40 if surface.stop or surface.pattern else 8


@st.composite
def surfaces(draw: st.DrawFn, grounds: Grounds, surface: st.SearchStrategy[Surface]) -> Workload:
    """Plain, then with the surface, then plain again; more of both, and some side by side."""
    prompt = Prompt((draw(stems(grounds)),))
    asked = [PLAIN, draw(surface), PLAIN]
    for _ in range(draw(st.integers(0, 3))):
        asked.append(draw(st.one_of(surface, st.just(PLAIN))))
    steps: list[Step] = []
    for kind in asked:
        request = Request(prompt=prompt, max_tokens=tokens_for(kind), surface=kind)
        beside = Request(prompt=Prompt((*prompt.segments, Segment("beside", 5))), max_tokens=12)
        steps.append(Burst(requests=(request, beside) if draw(st.sampled_from((False, False, True))) else (request,)))
    return Workload(tuple(steps))
