"""Workloads switch adapters on and off for all requests. They are drawn, run and judged, and controls are made from
them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from support.drawn_workloads import LIMITS, few_examples, found, requests_of, without
from support.histories import ask, burst, play, put

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.harness.features.lora.evidence import Adapters
from coldproof.harness.features.lora.workloads import CHOSEN_NAME, SWITCHED_NAME, adapter_switches
from coldproof.harness.judgement.finding import Rule
from coldproof.harness.judgement.judge import Judgement, judge
from coldproof.harness.proof.diagnose.controls import controls_of
from coldproof.harness.session.selftest.scripted_engine import ClosedFormOracle, InjectedBug, ScriptedEngine
from coldproof.harness.workload.steps import Burst, Route, SetAdapter, Step, Unload, Workload

ON_A, ON_B = (put(content, name=SWITCHED_NAME, route=Route.SWITCH) for content in "AB")
BARE, UNDER = burst(ask()), burst(ask(adapter=SWITCHED_NAME))
WORKLOAD: tuple[Step, ...] = (ON_A, UNDER, ON_B, UNDER, Unload(SWITCHED_NAME), BARE)


def judged(plant: InjectedBug, folder: Path) -> Judgement:
    """Return the judgement of the workload on a scripted engine."""
    return judge(play(ScriptedEngine(plant), folder, *WORKLOAD), ClosedFormOracle(), Rule(exact=True), exclusive=True)


@few_examples
@given(adapter_switches(LIMITS["roomy"]))
def test_requests_use_the_adapter_that_is_switched_on(workload: Workload) -> None:
    """Nobody requests the switched adapter while it is off, and two successive switches differ."""
    on: str | None = None
    for step in workload.steps:
        match step:
            case SetAdapter(route=Route.SWITCH, content=content):
                assert content != on
                on = content
            case Unload():
                assert on is not None
                on = None
            case Burst(requests=(request,)):
                assert request.adapter in (None, CHOSEN_NAME) or on is not None


def test_requests_choose_their_own_where_the_engine_lets_them() -> None:
    """Such requests come between the switches. Without the capability there are none."""
    found(
        adapter_switches(LIMITS["roomy"]), lambda w: any(request.adapter == CHOSEN_NAME for request in requests_of(w))
    )

    @few_examples
    @given(adapter_switches(without(LIMITS["roomy"], Capability.ADAPTER_CHOICE)))
    def check(workload: Workload) -> None:
        assert all(request.adapter != CHOSEN_NAME for request in requests_of(workload))

    check()


def test_a_correct_engine_has_no_findings_and_is_exercised(tmp_path: Path) -> None:
    """Two contents are switched on in turn, and then the base model is used."""
    judgement = judged(InjectedBug.CLEAN, tmp_path)
    assert judgement.findings == ()
    assert judgement.evidence[Adapters.SWITCHES] == 2
    assert judgement.evidence[Adapters.STALE_CHANCES] == judgement.evidence[Adapters.DISCRIMINATING] == 2


@pytest.mark.parametrize(("plant", "request_"), [(InjectedBug.NAME_ONLY_KEY, 1), (InjectedBug.NO_ADAPTER_KEY, 1)])
def test_a_cache_that_ignores_switches_is_detected(plant: InjectedBug, request_: int, tmp_path: Path) -> None:
    """KV that was written under the first content gives the answer for the second."""
    finding = judged(plant, tmp_path).worst()
    assert (finding.request, finding.failure_class.value) == (request_, "stale state")


def test_the_control_has_each_request_choose() -> None:
    """The control uses one name for each content. It is made only for workloads with a switch."""
    made = {control.name: control for control in controls_of(Workload(WORKLOAD), 1, salts=False)}
    steps = made["adapters chosen by each request"].workload.steps
    loads = [step for step in steps if isinstance(step, SetAdapter)]
    assert [load.route for load in loads] == [Route.LOAD, Route.LOAD]
    assert len({load.name for load in loads}) == 2
    assert "a unique name for each adapter load" not in made
    plain = Workload((put("A"), burst(ask(adapter="tenant")), put("B"), burst(ask(adapter="tenant"))))
    assert "adapters chosen by each request" not in {c.name for c in controls_of(plain, 1, salts=False)}


def test_where_hits_come_token_by_token_the_first_block_is_no_control() -> None:
    """The nonce precedes the block, and its tokens are hit in any case."""
    names = [{c.name for c in controls_of(Workload(WORKLOAD), 1, salts=False, blocks=b)} for b in (True, False)]
    assert names[0] - names[1] == {"another first block in the failing request"}
