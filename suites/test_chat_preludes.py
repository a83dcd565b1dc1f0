"""Conversations: what they share must be shared rightly, and what decode wrote must serve the next turn."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from adapters.base import Capability
from harness.evidence import Evidence
from harness.generators.chats import conversations, trees
from harness.lab import Lab
from harness.requirement import requirement

TOKENS = (Capability.TOKEN_PROMPTS, Capability.TOKEN_OUTPUTS)


@requirement(
    "CHAT-1",
    "shared preludes, as chats",
    needs=(*TOKENS, Capability.CHAT),
    shows=(Evidence.CHATS, Evidence.SHARED_HITS),
    upstream=("vllm#37076", "kvcached#446", "vllm-mlx#384"),
)
@given(data=st.data())
def test_chats_that_share_a_prelude(lab: Lab, data: st.DataObject) -> None:
    """Chats that share a prelude are answered by a conforming engine as cold, in trees, interleaved, concurrent.

    Why it can break: a prelude that is shared by all is the most reused prefix there is, and siblings that part from it
    are told apart by one block's hash (vllm#37076, kvcached#446). Oracle: cold start, asked for the very ids that the
    chat template made. Vacuous when no chat hit a prefix of another one.
    """
    lab.check(data.draw(trees(lab.grounds, chat=True), label="workload"))


@requirement("CHAT-1", "shared preludes, as token ids", needs=TOKENS, shows=(Evidence.SHARED_HITS,))
@given(data=st.data())
def test_prompts_that_share_a_prelude(lab: Lab, data: st.DataObject) -> None:
    """So are plain prompts of token ids, where every edge of a block can be aimed at."""
    lab.check(data.draw(trees(lab.grounds, chat=False), label="workload"))


@requirement(
    "CHAT-2",
    "the next turn, as chats",
    needs=(*TOKENS, Capability.CHAT),
    shows=(Evidence.CHATS, Evidence.DECODE_HITS),
    upstream=("vllm#54193",),
)
@given(data=st.data())
def test_next_turn_of_a_chat(lab: Lab, data: st.DataObject) -> None:
    """A conversation's next turn, its own output replayed, hits what decode wrote, and a conforming engine answers it
    as cold.

    Why it can break: blocks that decode fills take another path than those of a prompt, and the last sampled token has
    no KV yet (vllm#54193). Oracle: cold start and the reference cache. Vacuous when no hit reached into an answer.
    """
    lab.check(data.draw(conversations(lab.grounds, chat=True), label="workload"))


@requirement("CHAT-2", "the next turn, as token ids", needs=TOKENS, shows=(Evidence.DECODE_HITS,))
@given(data=st.data())
def test_next_turn_in_token_ids(lab: Lab, data: st.DataObject) -> None:
    """So is one whose output was replayed token by token."""
    lab.check(data.draw(conversations(lab.grounds, chat=False), label="workload"))
