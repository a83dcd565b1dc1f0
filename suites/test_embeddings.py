"""Prompts with embedding rows: positions at which the model gets a row instead of a token."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.harness.features.lora.evidence import Adapters
from coldproof.harness.features.rows.evidence import Rows
from coldproof.harness.features.rows.workloads import conversations_with_rows, near_embeddings
from coldproof.harness.judgement.requirement import requirement
from coldproof.harness.session.system_under_test import SystemUnderTest

AREA = "prompts with embedding rows"
ROWS = (Capability.EMBEDDING_ROWS, Capability.TOKEN_PROMPTS, Capability.TOKEN_OUTPUTS, Capability.CACHED_TOKENS)
BOTH = (*ROWS, Capability.HIDDEN_ROWS)  # a row and a token id for each position, of which the model gets one


@requirement(
    "EMBED-1",
    "embedding rows isolated by content and by position",
    needs=(*BOTH, Capability.CACHE_SALT),
    suits=("embedding rows",),
    shows=(Rows.HITS, Rows.OTHER_ROWS, Rows.OTHER_MASK, Adapters.STALE_CHANCES),
    upstream=("vllm#56655",),
)
@given(data=st.data())
def test_embedding_rows_isolate_the_cache(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A conforming engine never shares KV between prompts that differ in an embedding row, or in which positions are
    rows, whatever the token ids and rows at the other positions are. Equal prompts do share KV, and salts and adapters
    isolate them as they do prompts of tokens.

    Why it can break: the token ids of rows are placeholders, so a key of ids sees no content (lmdeploy#4933), and a key
    of ids and rows does not say which of both the model gets (vllm#56655). Oracle: cold start, and the reference cache
    over what the model sees at each position. Vacuous when no hit reached into rows, or no block of another prompt
    differed only in a row, or only in which positions are rows.
    """
    workload = near_embeddings(sut.limits, with_adapter=sut.can(Capability.ADAPTER_CHOICE))
    sut.check(data.draw(workload, label="workload"))


@requirement(
    "EMBED-1",
    "embedding rows beside token ids 0",
    needs=(*BOTH, Capability.CACHE_SALT),
    suits=("embedding rows",),
    shows=(Rows.HITS, Rows.OTHER_MASK),
    upstream=("vllm#56655",),
)
@given(data=st.data())
def test_embedding_rows_beside_token_ids_of_zero(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A conforming engine distinguishes a row from a token also where the token's id is 0, which an engine may put in
    place of a row.
    """
    workload = near_embeddings(sut.limits, with_adapter=sut.can(Capability.ADAPTER_CHOICE), zeros=True)
    sut.check(data.draw(workload, label="workload"))


@requirement(
    "EMBED-1",
    "embedding rows between tokens",
    needs=(*ROWS, Capability.CACHE_SALT),
    suits=("embedding rows",),
    shows=(Rows.HITS, Rows.OTHER_ROWS, Adapters.STALE_CHANCES),
    upstream=("vllm#56655",),
)
@given(data=st.data())
def test_embedding_rows_between_tokens(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A conforming engine does so also where each position of a prompt is a token or a row, as in the parts of a chat,
    and where a prompt has rows only.
    """
    workload = near_embeddings(sut.limits, with_adapter=sut.can(Capability.ADAPTER_CHOICE), alone=True)
    sut.check(data.draw(workload, label="workload"))


@requirement(
    "EMBED-1",
    "rows of zeros beside token ids 0",
    needs=(*ROWS, Capability.CACHE_SALT),
    suits=("embedding rows",),
    shows=(Rows.HITS, Rows.OTHER_MASK),
    upstream=("vllm#56655",),
)
@given(data=st.data())
def test_rows_of_zeros_beside_token_ids_of_zero(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A conforming engine distinguishes a row of zeros from the token 0, also where the request has neither a token id
    under the row nor a row under the token.

    Why it can break: an engine may put 0 in place of the token id of a row, and zeros in place of the row of a token.
    Then all but the mask is equal.
    """
    with_adapter = sut.can(Capability.ADAPTER_CHOICE)
    workload = near_embeddings(sut.limits, with_adapter=with_adapter, zeros=True, alone=True)
    sut.check(data.draw(workload, label="workload"))


@requirement(
    "EMBED-1", "the next turn after embedding rows", needs=ROWS, suits=("embedding rows",), shows=(Rows.TURNS,)
)
@given(data=st.data())
def test_next_turn_after_embedding_rows(sut: SystemUnderTest, data: st.DataObject) -> None:
    """The next turn of a prompt with rows hits what decode wrote, as that of a prompt of tokens does, and a conforming
    engine answers it as cold.
    """
    sut.check(data.draw(conversations_with_rows(sut.limits), label="workload"))
