"""In workloads for several ranks, every rank gets the same requests, and next turns stay on their rank."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from support.drawn_workloads import limits, requests_of
from support.histories import ask, burst, put

from coldproof.harness.features.lora.workloads import AdapterLifecycle, adapter_lifecycles
from coldproof.harness.features.ranks.workloads import on_drawn_ranks, on_every_rank
from coldproof.harness.features.resets.workloads import resets
from coldproof.harness.features.weights.workloads import paused
from coldproof.harness.workload.generators.chats import conversations
from coldproof.harness.workload.steps import Burst, Meanwhile, Reset, Workload
from coldproof.harness.workload.validity import is_valid

ONE, TWO = limits(), msgspec.structs.replace(limits(), ranks=2)
TURNS = Workload((burst(ask()), put("A"), burst(ask(("other", 9))), burst(ask(("turn", 5), continues=0))))
USUAL = st.one_of(
    adapter_lifecycles(TWO, AdapterLifecycle()), resets(TWO), paused(TWO, updates=False), conversations(TWO, chat=False)
)


@given(found=on_every_rank(TWO, st.just(TURNS)))
@settings(deadline=None, max_examples=20)
def test_each_burst_is_sent_to_each_rank_in_one_order(found: Workload) -> None:
    """A next turn goes to the rank of the request that it continues."""
    requests = requests_of(found)
    order = [requests[0].rank, requests[1].rank]
    assert [one.rank for one in requests] == 3 * order
    assert sorted(map(str, order)) == ["0", "1"]
    assert [one.prompt.continues for one in requests] == [None, None, None, None, 0, 1]
    assert [type(step) is Burst for step in found.steps] == [True, True, False, True, True, True, True]


@given(found=on_every_rank(TWO, USUAL))
@settings(deadline=None, max_examples=60)
def test_what_is_drawn_can_be_run(found: Workload) -> None:
    """Every request names a rank, and after each change every rank gets requests."""
    assert is_valid(found)
    assert {one.rank for one in requests_of(found)} == {0, 1}


@given(
    found=on_every_rank(
        TWO, st.just(Workload((Burst(requests=(ask(),), meanwhile=Meanwhile(change=Reset(), after_tokens=1)),)))
    )
)
@settings(deadline=None, max_examples=30)
def test_a_change_comes_during_requests_of_one_or_all_ranks(found: Workload) -> None:
    """They are in one burst, because a change happens once."""
    (step,) = found.steps
    assert isinstance(step, Burst)
    assert step.meanwhile is not None
    assert len({one.rank for one in step.requests}) == len(step.requests)


@given(data=st.data())
@settings(deadline=None, max_examples=10)
def test_with_one_cache_the_workload_stays_as_it_is(data: st.DataObject) -> None:
    """A model that is distributed over ranks has one cache."""
    for strategy in (on_every_rank, on_drawn_ranks):
        assert data.draw(strategy(ONE, st.just(TURNS))) == TURNS


@given(found=on_drawn_ranks(TWO, st.just(TURNS)))
@settings(deadline=None, max_examples=30)
def test_a_conversation_may_move_to_another_rank(found: Workload) -> None:
    """Only ranks are added."""
    assert {one.rank for one in requests_of(found)} <= {0, 1}
    unnamed = [msgspec.structs.replace(one, rank=None) for one in requests_of(found)]
    assert unnamed == requests_of(TURNS)
