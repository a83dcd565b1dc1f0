"""Whatever else a request may ask for must be complete on a hit, and equal to what a cold start gives."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from adapters.base import Capability
from harness.evidence import Evidence
from harness.generators.surfaces import PROMPT_LOGPROBS, SEVERAL_ANSWERS, STOP_STRINGS, STRUCTURED, surfaces
from harness.lab import Lab
from harness.requirement import requirement

TOKENS = (Capability.TOKEN_PROMPTS, Capability.TOKEN_OUTPUTS)


@requirement(
    "SURFACE-1",
    "prompt logprobs",
    needs=(*TOKENS, Capability.PROMPT_LOGPROBS),
    shows=(Evidence.SCORED_PROMPTS, Evidence.HITS),
    upstream=("vllm#42019", "vllm#3251"),
)
@given(data=st.data())
def test_prompt_logprobs(lab: Lab, data: st.DataObject) -> None:
    """Prompt logprobs are complete and equal to cold ones on a hit.

    Why it can break: tokens that came from the cache are not computed, so they have no scores, or somebody else's.
    Oracle: the cold engine's own prompt logprobs. Vacuous when no scored prompt lay cached.
    """
    lab.check(data.draw(surfaces(lab.grounds, PROMPT_LOGPROBS), label="workload"))


@requirement("SURFACE-1", "several answers", needs=(*TOKENS, Capability.SEVERAL_ANSWERS), shows=(Evidence.SEVERAL,))
@given(data=st.data())
def test_several_answers(lab: Lab, data: st.DataObject) -> None:
    """So are several answers to one prompt, sampled from one seed."""
    lab.check(data.draw(surfaces(lab.grounds, SEVERAL_ANSWERS), label="workload"))


@requirement(
    "SURFACE-1",
    "stop strings",
    needs=(*TOKENS, Capability.STOP_STRINGS),
    shows=(Evidence.STOPPED,),
    upstream=("vllm#5543",),
)
@given(data=st.data())
def test_stop_strings(lab: Lab, data: st.DataObject) -> None:
    """So are answers that a stop string ends, and their logprobs."""
    lab.check(data.draw(surfaces(lab.grounds, STOP_STRINGS), label="workload"))


@requirement(
    "SURFACE-1",
    "structured output",
    needs=(*TOKENS, Capability.STRUCTURED_OUTPUT),
    shows=(Evidence.PATTERNED,),
    upstream=("vllm#30916", "TRT#18891"),
)
@given(data=st.data())
def test_structured_output(lab: Lab, data: st.DataObject) -> None:
    """So is structured output."""
    lab.check(data.draw(surfaces(lab.grounds, STRUCTURED), label="workload"))
