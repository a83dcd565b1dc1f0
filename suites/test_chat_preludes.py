"""Conversations: a prefix that they share must be reused correctly, and the next turn must hit what decode wrote."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.cell_traits import CellTrait
from coldproof.harness.features.salts.crossed_workloads import answers_then_turns
from coldproof.harness.judgement.evidence.cache import Reuse
from coldproof.harness.judgement.requirement import requirement
from coldproof.harness.session.system_under_test import SystemUnderTest
from coldproof.harness.workload.generators.chats import conversations, trees
from coldproof.harness.workload.generators.edges import chunks_at_edges, crowds, long_neighbours
from coldproof.harness.workload.generators.rare import with_rare

AREA = "shared system prompts and multi-turn chats"
TOKENS = (Capability.TOKEN_PROMPTS, Capability.TOKEN_OUTPUTS)
TURN_CELLS = (CellTrait.PLAIN, CellTrait.CONVERSATIONS, CellTrait.KV_LAYOUT)
PREFIX_CELLS = (*TURN_CELLS, CellTrait.WAITING, CellTrait.INTERLEAVED)


@requirement(
    "CHAT-1",
    "shared prefixes, as chats",
    needs=(*TOKENS, Capability.CHAT),
    suits=PREFIX_CELLS,
    shows=(Reuse.CHATS, Reuse.SHARED_HITS),
    upstream=("vllm#37076", "kvcached#446", "vllm-mlx#384"),
)
@given(data=st.data())
def test_chats_that_share_a_prefix(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A conforming engine answers chats that share a prefix as cold: with branches, interleaved and concurrent.

    Why it can break: a prefix that all chats share is the most reused one, and chats that diverge after it differ in
    one block's hash only (vllm#37076, kvcached#446). Oracle: cold start with the exact token ids that the chat template
    made. Vacuous when no chat hit a prefix of another one.
    """
    sut.check(data.draw(trees(sut.limits, chat=True), label="workload"))


@requirement("CHAT-1", "shared prefixes, as token ids", needs=TOKENS, suits=PREFIX_CELLS, shows=(Reuse.SHARED_HITS,))
@given(data=st.data())
def test_prompts_that_share_a_prefix(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A conforming engine answers prompts of token ids that share a prefix as cold. Their shared length is drawn at and
    around block boundaries.
    """
    rare = (crowds(sut.limits), chunks_at_edges(sut.limits), long_neighbours(sut.limits))
    sut.check(data.draw(with_rare(sut.limits, trees(sut.limits, chat=False), *rare), label="workload"))


@requirement(
    "CHAT-2",
    "the next turn, as chats",
    needs=(*TOKENS, Capability.CHAT),
    suits=TURN_CELLS,
    shows=(Reuse.CHATS, Reuse.DECODE_HITS),
    upstream=("vllm#54193",),
)
@given(data=st.data())
def test_next_turn_of_a_chat(sut: SystemUnderTest, data: st.DataObject) -> None:
    """The next turn of a conversation, which contains the engine's own output, hits what decode wrote, and a conforming
    engine answers it as cold.

    Why it can break: blocks that decode fills are handled by other code than a prompt's blocks, and the last sampled
    token has no KV yet (vllm#54193). Oracle: cold start and the reference cache. Vacuous when no hit reached into an
    answer.
    """
    sut.check(data.draw(conversations(sut.limits, chat=True, evidence=Reuse.DECODE_HITS), label="workload"))


@requirement("CHAT-2", "the next turn, as token ids", needs=TOKENS, suits=TURN_CELLS, shows=(Reuse.DECODE_HITS,))
@given(data=st.data())
def test_next_turn_in_token_ids(sut: SystemUnderTest, data: st.DataObject) -> None:
    """The next turn in token ids, which contains the engine's output token by token, hits what decode wrote, and a
    conforming engine answers it as cold.
    """
    usual = conversations(sut.limits, chat=False, evidence=Reuse.DECODE_HITS)
    rare = answers_then_turns(sut.limits)
    sut.check(data.draw(with_rare(sut.limits, usual, rare, every=4), label="workload"))
