"""Response options: all that a request can ask for besides tokens is complete on a hit, and equal to a cold start's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.cell_traits import CellTrait
from coldproof.harness.features.options.workloads import (
    PROMPT_LOGPROBS,
    SEVERAL_ANSWERS,
    STOP_STRINGS,
    STRUCTURED,
    with_response_options,
)
from coldproof.harness.judgement.evidence.cache import Options
from coldproof.harness.judgement.evidence.requests import Requests
from coldproof.harness.judgement.requirement import requirement
from coldproof.harness.session.system_under_test import SystemUnderTest

AREA = "response options"
TOKENS = (Capability.TOKEN_PROMPTS, Capability.TOKEN_OUTPUTS)
ANSWER_CELLS = (CellTrait.PLAIN, CellTrait.KV_LAYOUT, CellTrait.RESPONSE_OPTIONS)


@requirement(
    "SURFACE-1",
    "prompt logprobs",
    needs=(*TOKENS, Capability.PROMPT_LOGPROBS),
    suits=ANSWER_CELLS,
    shows=(Options.SCORED_PROMPTS, Requests.HITS),
    upstream=("vllm#42019", "vllm#3251"),
)
@given(data=st.data())
def test_prompt_logprobs(sut: SystemUnderTest, data: st.DataObject) -> None:
    """On a hit, a conforming engine returns complete prompt logprobs that are equal to the cold ones.

    Why it can break: tokens that came from the cache are not computed, so they have no scores, or the scores of another
    request. Oracle: the cold engine's prompt logprobs. Vacuous when no prompt with prompt logprobs was cached.
    """
    sut.check(data.draw(with_response_options(sut.limits, PROMPT_LOGPROBS), label="workload"))


@requirement(
    "SURFACE-1",
    "several answers",
    needs=(*TOKENS, Capability.SEVERAL_ANSWERS),
    suits=ANSWER_CELLS,
    shows=(Options.SEVERAL,),
)
@given(data=st.data())
def test_several_answers(sut: SystemUnderTest, data: st.DataObject) -> None:
    """On a hit, several answers to one prompt, sampled with one seed, are equal to the cold ones."""
    sut.check(data.draw(with_response_options(sut.limits, SEVERAL_ANSWERS), label="workload"))


@requirement(
    "SURFACE-1",
    "stop strings",
    needs=(*TOKENS, Capability.STOP_STRINGS),
    suits=ANSWER_CELLS,
    shows=(Options.STOPPED,),
    upstream=("vllm#5543",),
)
@given(data=st.data())
def test_stop_strings(sut: SystemUnderTest, data: st.DataObject) -> None:
    """On a hit, an answer that a stop string ends is equal to the cold one, including its logprobs."""
    sut.check(data.draw(with_response_options(sut.limits, STOP_STRINGS), label="workload"))


@requirement(
    "SURFACE-1",
    "structured output",
    needs=(*TOKENS, Capability.STRUCTURED_OUTPUT),
    suits=ANSWER_CELLS,
    shows=(Options.PATTERNED,),
    upstream=("vllm#30916", "TRT#18891"),
)
@given(data=st.data())
def test_structured_output(sut: SystemUnderTest, data: st.DataObject) -> None:
    """On a hit, structured output is equal to the cold one."""
    sut.check(data.draw(with_response_options(sut.limits, STRUCTURED), label="workload"))
