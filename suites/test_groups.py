"""Layers of several kinds: sliding windows, states and full attention keep their blocks in groups of their own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from adapters.base import Capability
from harness.evidence import Evidence
from harness.generators.adapters import Life, lives
from harness.generators.chats import conversations, trees
from harness.generators.reuse import long_returns, returns
from harness.history import hit_shares
from harness.lab import Lab
from harness.requirement import requirement
from harness.workload import Route

NEEDS = (
    Capability.TOKEN_PROMPTS,
    Capability.TOKEN_OUTPUTS,
    Capability.CACHED_TOKENS,
    Capability.BLOCK_SIZE,
    Capability.POOL_SIZE,
    Capability.SEVERAL_GROUPS,
)


@requirement(
    "GROUP-1",
    "A, B, A with a shared prelude",
    needs=NEEDS,
    shows=(Evidence.RETURN_HITS, Evidence.OWED),
    upstream=("vllm#32802", "vllm#51771", "vllm#42948", "vllm#54360"),
)
@given(data=st.data())
def test_a_prompt_sent_again_over_groups(lab: Lab, data: st.DataObject) -> None:
    """With several groups of KV-cache blocks, a prompt sent again after others still hits, in all groups alike, and
    answers as cold.

    Why it can break: a hit is what all groups have; one that lost its blocks, or keeps too few, costs the others theirs
    (vllm#32802, and a field report of 0 hits with five groups), and one that claims too many gives a stale block.
    Oracle: cold start and the reference cache. Vacuous when no prompt came back after another one.
    """
    lab.check(data.draw(returns(lab.grounds), label="workload"))


@requirement("GROUP-1", "A, A, B, A, as long as fits", needs=NEEDS, shows=(Evidence.RETURN_HITS, Evidence.OWED))
@given(data=st.data())
def test_the_longest_prompts_over_groups(lab: Lab, data: st.DataObject) -> None:
    """So does one that is almost as long as the model takes."""
    judgement = lab.check(data.draw(long_returns(lab.grounds), label="workload"))
    if judgement is not None:
        lab.remark(f"of A, A, B, A from the cache: {hit_shares(judgement.history)}")


@requirement("GROUP-1", "shared preludes", needs=NEEDS, shows=(Evidence.HITS, Evidence.TOGETHER))
@given(data=st.data())
def test_shared_preludes_over_groups(lab: Lab, data: st.DataObject) -> None:
    """Prompts that share a prelude answer as cold, one by one and side by side."""
    lab.check(data.draw(trees(lab.grounds, chat=False), label="workload"))


@requirement("GROUP-1", "the next turn", needs=NEEDS, shows=(Evidence.HITS,))
@given(data=st.data())
def test_next_turns_over_groups(lab: Lab, data: st.DataObject) -> None:
    """So do next turns, whose prefix decode wrote while a window moved on."""
    lab.check(data.draw(conversations(lab.grounds, chat=False), label="workload"))


@requirement(
    "GROUP-1",
    "adapters",
    needs=(*NEEDS, Capability.RUNTIME_LORA, Capability.LORA_IN_PLACE),
    shows=(Evidence.STALE_CHANCES, Evidence.TELLING),
)
@given(data=st.data())
def test_adapters_over_groups(lab: Lab, data: st.DataObject) -> None:
    """And no group shares a block between two adapters that had one name."""
    life = Life(routes=(Route.IN_PLACE, Route.UNLOAD_LOAD))
    lab.check(data.draw(lives(lab.grounds, life), label="workload"))
