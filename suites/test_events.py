"""Published KV events: what a router or a second cache manager believes, for it has nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from adapters.base import Capability
from harness.evidence import Evidence
from harness.generators.adapters import Life, lives, neighbours
from harness.generators.control import resets
from harness.generators.mixed import mixed
from harness.generators.preemption import crowds
from harness.generators.pressure import working_sets
from harness.generators.reuse import traffic
from harness.generators.salts import salted
from harness.lab import Lab
from harness.requirement import requirement
from harness.workload import Route

TOLD = (Capability.KV_EVENTS, Capability.TOKEN_PROMPTS, Capability.TOKEN_OUTPUTS, Capability.CACHED_TOKENS)
EXPLAINED = (Evidence.STORED, Evidence.EXPLAINED, Evidence.OWED_BY_EVENTS)
NAMED = (Capability.CACHE_SALT, Capability.RUNTIME_LORA, Capability.LORA_IN_PLACE)
ROUTES = (Route.IN_PLACE, Route.UNLOAD_LOAD)


@requirement(
    "EVENT-1",
    "events explain the hits",
    needs=TOLD,
    shows=EXPLAINED,
    upstream=("vllm#58119", "vllm#43258", "vllm#44451"),
)
@given(data=st.data())
def test_events_explain_the_hits(lab: Lab, data: st.DataObject) -> None:
    """A conforming engine's published KV events, replayed, describe what is resident, and explain the hit counters.

    Why it can break: events are sent where blocks are stored in one code path and not in another (vllm#58119,
    vllm PR#43258), or with tokens that are not the block's (vllm#44451). Oracle: a consumer that replays the stream: no
    gap, no block before its parent, no removal of what is not there, only tokens that were asked for, no hit of what
    was not stored, no miss of what was there all the while. Vacuous when nothing was hit.
    """
    lab.check(data.draw(traffic(lab.grounds), label="workload"))


@requirement(
    "EVENT-1",
    "events tell whose blocks they are",
    needs=(*TOLD, *NAMED),
    shows=EXPLAINED,
    upstream=("llmd-router#1389", "sglang#24568"),
)
@given(data=st.data())
def test_events_tell_whose_blocks_they_are(lab: Lab, data: st.DataObject) -> None:
    """They do so under adapters and salts as well, and name both.

    Why it can break: routers key blocks by what events name, and salts or adapters are forgotten there (llm-d-router
    #1389, sglang#24568). Oracle: the same consumer; a block's adapter and extra keys must be those of a request with
    its tokens. Vacuous when nothing was hit.
    """
    life = Life(routes=ROUTES, goes_back=True)
    named = st.one_of(salted(lab.grounds, with_adapter=True), lives(lab.grounds, life), neighbours(lab.grounds))
    lab.check(data.draw(named, label="workload"))


@requirement(
    "EVENT-1",
    "events tell of resets",
    needs=(*TOLD, Capability.CACHE_RESET),
    shows=(*EXPLAINED, Evidence.CLEARED, Evidence.AFTER_RESET),
)
@given(data=st.data())
def test_events_tell_of_resets(lab: Lab, data: st.DataObject) -> None:
    """They say when a cache reset has left nothing to hit.

    Why it can break: a router that is not told goes on sending prompts to where their blocks were. Oracle: an event for
    each reset that reported success, by the end of the next request. Vacuous when no prompt was asked again after one.
    """
    lab.check(data.draw(resets(lab.grounds), label="workload"))


@requirement(
    "EVENT-2", "events tell of evictions", needs=TOLD, shows=(*EXPLAINED, Evidence.REMOVED), upstream=("vllm#49125",)
)
@given(data=st.data())
def test_events_tell_of_evictions(lab: Lab, data: st.DataObject) -> None:
    """A conforming engine's KV events describe what is resident while blocks are evicted and requests preempted.

    Why it can break: a block loses its hash in a place that tells nobody, or one copy's removal is taken for all.
    Oracle: the consumer; what was stored and not removed must fit into the pool. Vacuous when nothing was removed.
    """
    work = st.one_of(working_sets(lab.grounds), crowds(lab.grounds, afterwards=True))
    lab.check(data.draw(work, label="workload"))


@requirement("EVENT-2", "events of everything at once", needs=TOLD, shows=(*EXPLAINED, Evidence.REMOVED), weight=2)
@given(data=st.data())
def test_events_of_everything_at_once(lab: Lab, data: st.DataObject) -> None:
    """They do so with chats, adapters, salts, aborts and resets one behind the other.

    Why it can break: each mechanism was tested alone. Oracle: the consumer. Vacuous when nothing was removed.
    """
    lab.check(data.draw(mixed(lab.grounds), label="workload"))


@requirement(
    "EVENT-3",
    "block hashes follow from their events",
    needs=(*TOLD, Capability.CACHE_SALT),
    shows=(Evidence.RECOMPUTED, Evidence.SALTED_HITS),
    hashes_too=True,
    upstream=("vllm#44103", "ascend#12002"),
)
@given(data=st.data())
def test_block_hashes_follow_from_their_events(lab: Lab, data: st.DataObject) -> None:
    """A conforming engine's block hashes can be computed again from the fields of their own events.

    Why it can break: the hash takes in what the event leaves out, or the event is published under another block's hash
    (vllm PR#44103), or a preemption lost what hashes go on from. Who looks prompts up by hashes of its own then finds
    nothing, or the wrong engine. Oracle: the engine's documented rule over parent, tokens and extra keys. Vacuous when
    no hash could be computed.
    """
    work = [traffic(lab.grounds), salted(lab.grounds, with_adapter=False)]
    if lab.grounds.small_pool is not None:
        work.append(crowds(lab.grounds, afterwards=True, adapters=False))
    lab.check(data.draw(st.one_of(work), label="workload"))


@requirement(
    "EVENT-3",
    "adapters' block hashes follow from their events",
    needs=(*TOLD, *NAMED),
    shows=(Evidence.RECOMPUTED_ADAPTER,),
    hashes_too=True,
)
@given(data=st.data())
def test_adapters_block_hashes_follow_from_their_events(lab: Lab, data: st.DataObject) -> None:
    """They can for adapters as well.

    Why it can break: the hash takes in more of an adapter than its name. Oracle: the same rule. Vacuous when no hash of
    an adapter's block could be computed.
    """
    lab.check(data.draw(lives(lab.grounds, Life(routes=ROUTES)), label="workload"))


@requirement(
    "EVENT-4",
    "events of several groups",
    needs=(*TOLD, Capability.SEVERAL_GROUPS),
    shows=(Evidence.STORED, Evidence.EXPLAINED),
    upstream=("vllm#44451", "vllm#58119", "vllm#44103"),
)
@given(data=st.data())
def test_events_of_several_groups(lab: Lab, data: st.DataObject) -> None:
    """A conforming engine's KV events describe what is resident in each of several groups of KV-cache blocks.

    Why it can break: layers that let go of blocks publish only some of them, with the tokens of all (vllm#44451,
    vllm#58119). Oracle: the consumer, group by group; what is hit must lie in all groups that hold everything. Vacuous
    when nothing was hit.
    """
    lab.check(data.draw(traffic(lab.grounds), label="workload"))
