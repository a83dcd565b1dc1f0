"""Several groups of KV-cache blocks: layers with sliding windows, states and full attention each have their own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.harness.features.lora.evidence import Adapters
from coldproof.harness.features.lora.workloads import AdapterLifecycle, adapter_lifecycles
from coldproof.harness.history.records import hit_shares
from coldproof.harness.judgement.evidence.cache import Reuse
from coldproof.harness.judgement.evidence.requests import Requests
from coldproof.harness.judgement.requirement import requirement
from coldproof.harness.session.system_under_test import SystemUnderTest
from coldproof.harness.workload.generators.chats import conversations, trees
from coldproof.harness.workload.generators.edges import chunks_at_edges, crowds
from coldproof.harness.workload.generators.rare import with_rare
from coldproof.harness.workload.generators.reuse import boundaries, long_conversations, long_returns, returns
from coldproof.harness.workload.steps import Route

AREA = "several KV cache groups"
TOKENS = (Capability.TOKEN_PROMPTS, Capability.TOKEN_OUTPUTS, Capability.CACHED_TOKENS)
NEEDS = (*TOKENS, Capability.BLOCK_SIZE, Capability.POOL_SIZE, Capability.SEVERAL_GROUPS)
BLOCK_CELLS = ("groups", "groups with unequal blocks")


@requirement(
    "GROUP-1",
    "A, B, A with a shared prefix",
    needs=NEEDS,
    suits=BLOCK_CELLS,
    shows=(Reuse.RETURN_HITS, Reuse.EXPECTED),
    upstream=("vllm#32802", "vllm#51771", "vllm#42948", "vllm#54360"),
)
@given(data=st.data())
def test_a_prompt_sent_again_over_groups(sut: SystemUnderTest, data: st.DataObject) -> None:
    """With several groups of KV-cache blocks, a prompt that is sent again after others still hits in all groups, and a
    conforming engine answers it as cold.

    Why it can break: a hit must be present in all groups. A group that lost its blocks, or keeps too few, costs the
    other groups their hits (vllm#32802, and a field report of 0 hits with five groups); a group that reports too many
    gives a stale block. Oracle: cold start and the reference cache. Vacuous when no prompt was sent again after another
    one.
    """
    sut.check(data.draw(returns(sut.limits), label="workload"))


@requirement(
    "GROUP-1",
    "A, A, B, A with the longest prompts",
    needs=NEEDS,
    suits=BLOCK_CELLS,
    shows=(Reuse.RETURN_HITS, Reuse.EXPECTED),
)
@given(data=st.data())
def test_the_longest_prompts_over_groups(sut: SystemUnderTest, data: st.DataObject) -> None:
    """With several groups of KV-cache blocks, a prompt that is almost as long as the model's context still hits when it
    is sent again, and a conforming engine answers it as cold.
    """
    judgement = sut.check(data.draw(long_returns(sut.limits), label="workload"))
    if judgement is not None:
        sut.remark(f"cached share of the prompts A, A, B, A: {hit_shares(judgement.history)}")


@requirement("GROUP-1", "shared prefixes", needs=NEEDS, suits=BLOCK_CELLS, shows=(Requests.HITS, Adapters.TOGETHER))
@given(data=st.data())
def test_shared_prefixes_over_groups(sut: SystemUnderTest, data: st.DataObject) -> None:
    """With several groups of KV-cache blocks, a conforming engine answers prompts that share a prefix as cold, one by
    one and concurrently.
    """
    rare = (crowds(sut.limits), chunks_at_edges(sut.limits))
    sut.check(data.draw(with_rare(sut.limits, trees(sut.limits, chat=False), *rare, every=3), label="workload"))


@requirement("GROUP-1", "the next turn", needs=NEEDS, suits=BLOCK_CELLS, shows=(Requests.HITS,))
@given(data=st.data())
def test_next_turns_over_groups(sut: SystemUnderTest, data: st.DataObject) -> None:
    """With several groups of KV-cache blocks, a conforming engine answers next turns as cold, whose prefix decode wrote
    while a sliding window advanced.
    """
    sut.check(data.draw(conversations(sut.limits, chat=False), label="workload"))


@requirement(
    "GROUP-1",
    "adapters",
    needs=(*NEEDS, Capability.RUNTIME_LORA, Capability.LORA_IN_PLACE),
    suits=BLOCK_CELLS,
    shows=(Adapters.STALE_CHANCES, Adapters.DISCRIMINATING),
)
@given(data=st.data())
def test_adapters_over_groups(sut: SystemUnderTest, data: st.DataObject) -> None:
    """In no group does a conforming engine share a block between two adapters that had the same name."""
    lifecycle = AdapterLifecycle(routes=(Route.IN_PLACE, Route.UNLOAD_LOAD))
    sut.check(data.draw(adapter_lifecycles(sut.limits, lifecycle), label="workload"))


@requirement(
    "GROUP-2",
    "what stands at a block's end",
    needs=NEEDS,
    suits=("groups",),
    shows=(Reuse.SHARED_HITS,),
    upstream=("vllm#51113", "vllm#55600", "vllm#55601", "vllm#53912"),
)
@given(data=st.data())
def test_hits_at_every_boundary(sut: SystemUnderTest, data: st.DataObject) -> None:
    """What a conforming engine caches at the end of a block is the state at that position, whatever the chunks of the
    prompt that left it there: a prompt that continues from it is answered as cold.

    Why it can break: attention reads each token's own KV, but a layer with a state or a window has one value for all
    tokens up to a block's end. If it is stored a chunk too early or too late (vllm#51113: hashed as the state behind
    1,600 tokens, held that behind 364), or read from the wrong block for short hits (vllm#55600), every hit is wrong in
    silence. Oracle: cold start and the reference cache. Vacuous when no prompt hit what another one left.
    """
    sut.check(data.draw(boundaries(sut.limits), label="workload"))


@requirement(
    "GROUP-3",
    "long conversations with one prelude",
    needs=NEEDS,
    suits=("groups", "groups with long prompts"),
    shows=(Requests.HITS,),
    upstream=("vllm#42948", "vllm#48435", "vllm#57610"),
)
@given(data=st.data())
def test_long_conversations_over_groups(sut: SystemUnderTest, data: st.DataObject) -> None:
    """With several groups of KV-cache blocks, a conforming engine finds what conversations share, however long it is,
    at each position for which it keeps the blocks of its windows and states, and answers each turn as cold.

    Why it can break: a window frees its blocks while a long prompt is computed. If they are evicted in the wrong order,
    or not kept where prompts part, a prelude of 250,000 tokens is computed again although its blocks with full
    attention are there (vllm#42948: 0 hits at 10% use of the pool). Oracle: cold start and the reference cache, which
    knows the positions. Where the pool has no room for what is kept, only answers and upper bounds are compared.
    Vacuous when nothing hit.
    """
    judgement = sut.check(data.draw(long_conversations(sut.limits), label="workload"))
    if judgement is not None:
        sut.remark(f"cached share of the prompts: {hit_shares(judgement.history)}")
