"""Workloads that show what a trial lacks come before the usual ones."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st
from support.drawn_workloads import any_at_all, few_examples, limits, requests_of

from coldproof.adapters.protocol.requests import Stage
from coldproof.harness.features.images.workloads import PREEMPTED_IMAGES, images_under_pressure
from coldproof.harness.features.resets.workloads import BEHIND, aborts
from coldproof.harness.features.salts.workloads import ALMOST_EQUAL, Alike, salted
from coldproof.harness.features.sessions.workloads import SHORT_FIRST, sessions
from coldproof.harness.features.weights.workloads import ASLEEP, paused
from coldproof.harness.judgement.leads import Leads
from coldproof.harness.workload.generators.chats import conversations
from coldproof.harness.workload.generators.leads import led
from coldproof.harness.workload.generators.prompts import WorkloadLimits
from coldproof.harness.workload.steps import Burst, Idle, Prompt, Request, Segment, Sleep, Wake, Workload
from coldproof.harness.workload.tokens import new_prompt_length

LIMITS = limits()
USUAL = Workload((Burst(requests=(Request(prompt=Prompt((Segment("stem", 8),))),)),))
OWN = Workload((Idle(1),))


def drawn(evidence: dict[str, float], *, fails: bool = False) -> list[Workload]:
    """Return what a trial draws: the third workload for its missing evidence shows that."""
    limits, found = msgspec.structs.replace(LIMITS, leads=Leads(evidence)), []

    @settings(database=None, derandomize=True, max_examples=20)
    @given(data=st.data())
    def trial(data: st.DataObject) -> None:
        workload = data.draw(led(limits, st.just(USUAL), {"loads": st.just(OWN)}))
        found.append(workload)
        if found.count(OWN) == 3:
            evidence["loads"] = 64
        assert not (fails and len(found) >= 3 and workload == OWN)

    if fails:
        with pytest.raises(AssertionError):
            trial()
    else:
        trial()
    return found


def test_the_missing_evidence_is_drawn_first() -> None:
    """The usual workloads follow when it is there."""
    found = drawn({})
    assert found[:3] == [OWN] * 3
    assert found[-1] == USUAL
    assert set(drawn({"loads": 1})) == {USUAL}


def test_a_failure_is_found_again() -> None:
    """Its evidence is there when hypothesis draws it again. Else that would end as a flaky test."""
    assert drawn({}, fails=True)[-1] == OWN


def test_without_a_trial_the_usual_ones_are_drawn() -> None:
    """As for a generator that a test or another tool calls."""
    found = []

    @settings(database=None, derandomize=True, max_examples=5)
    @given(workload=led(LIMITS, st.just(USUAL), {"loads": st.just(OWN)}))
    def each(workload: Workload) -> None:
        found.append(workload)

    each()
    assert set(found) == {USUAL}


class Only(msgspec.Struct, frozen=True):
    """A trial that lacks one evidence."""

    name: str

    def choose(self, among: tuple[str, ...], number: int) -> str:
        """Return its name if that is among these."""
        return self.name if self.name in among else ""


def of(limits: WorkloadLimits, name: str) -> WorkloadLimits:
    """Return these limits for a trial that lacks this evidence."""
    return msgspec.structs.replace(limits, leads=Only(name))


@few_examples
@given(data=st.data(), row=st.sampled_from(ALMOST_EQUAL))
def test_each_way_of_being_almost_equal_can_be_asked_for(data: st.DataObject, row: tuple[Alike, str, str]) -> None:
    """The prompt is sent with a pair of such salts."""
    alike = row[0]
    sent = requests_of(data.draw(salted(of(limits(), alike.chance), with_adapter=False)))
    whom = {request.salt for request in sent if request.prompt == sent[0].prompt}
    assert any({one, other} <= whom for kind, one, other in ALMOST_EQUAL if kind is alike)


@few_examples
@given(sessions(of(limits(), SHORT_FIRST), with_adapter=False))
def test_a_session_that_begins_with_less_than_a_block_can_be_asked_for(workload: Workload) -> None:
    """Its first turn and the answer fit into a block."""
    first = requests_of(workload)[0]
    assert first.session
    assert new_prompt_length(first.prompt) + first.max_tokens < limits().block


@few_examples
@given(aborts(of(limits(), BEHIND)))
def test_requests_behind_an_abort_in_the_queue_can_be_asked_for(workload: Workload) -> None:
    """There is an abort in the queue in each workload, and the first kind of these has a request behind it."""
    stages = [request.abort.at for request in requests_of(workload) if request.abort is not None]
    assert stages == [Stage.QUEUED]


def test_a_request_can_come_behind_an_abort_in_the_queue() -> None:
    """It arrives after the victim, and before that is aborted."""
    found = find(aborts(of(limits(), BEHIND)), lambda workload: "behind" in str(workload), settings=any_at_all)
    victim, abort = next((request, request.abort) for request in requests_of(found) if request.abort is not None)
    late = next(request for request in requests_of(found) if "behind" in str(request.prompt))
    assert victim.offset_ms <= late.offset_ms <= victim.offset_ms + (abort.after_ms or 0)


@few_examples
@given(paused(of(limits(), ASLEEP), updates=False))
def test_requests_during_a_sleep_can_be_asked_for(workload: Workload) -> None:
    """They are sent before the engine is woken up, as a whole or in parts."""
    at = next(number for number, step in enumerate(workload.steps) if isinstance(step, Sleep))
    during = workload.steps[at + 1]
    assert isinstance(during, Burst)
    assert during.meanwhile is not None
    assert isinstance(during.meanwhile.change, Wake)


@few_examples
@given(data=st.data(), scale=st.sampled_from((1.0, 0.2)))
def test_a_preempted_request_with_images_can_be_asked_for(data: st.DataObject, scale: float) -> None:
    """A crowd with images outgrows the pool, also on a slow engine, and a prompt from before it comes again."""
    of_small_pool = msgspec.structs.replace(limits(block=16, pool=16 * 16, scale=scale), image_tokens=16)
    *_, before, crowd, again = data.draw(images_under_pressure(of(of_small_pool, PREEMPTED_IMAGES))).steps
    assert isinstance(crowd, Burst)
    assert all(any(segment.image for segment in request.prompt.segments) for request in crowd.requests)
    grown = [new_prompt_length(request.prompt) + request.max_tokens for request in crowd.requests]
    assert sum(grown) > 16 * 16
    assert max(grown) <= 16 * 16
    assert before == again


class Lacking:
    """Leads of a trial that never gets the evidence. `names`: which evidence it lacks."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def choose(self, among: tuple[str, ...], _number: int) -> str:
        """Return what is lacking."""
        return next((name for name in among if name in self.names), "")


@pytest.mark.parametrize(("lacking", "least"), [(("hits",), 2), ((), 1)])
def test_a_conversation_goes_on_after_the_next_turn_as_long_as_decode_was_not_hit(
    lacking: tuple[str, ...], least: int
) -> None:
    """Layers with windows may keep nothing of an answer until a prompt contains it."""
    led_limits = msgspec.structs.replace(LIMITS, leads=Lacking(*lacking))
    counts: list[int] = []

    @few_examples
    @given(conversations(led_limits, chat=True, evidence="hits"))
    def check(workload: Workload) -> None:
        counts.append(sum(request.prompt.continues is not None for request in requests_of(workload)))

    check()
    assert min(counts) == least
