"""An earlier content returns in some lifecycles, and bursts of the ground rule work for engines with many slots."""

from __future__ import annotations

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.harness.features.lora.workloads import (
    AdapterLifecycle,
    adapter_churn,
    adapter_lifecycles,
    mixed_bursts,
    reload_routes,
)
from coldproof.harness.workload.generators.prompts import WorkloadLimits
from coldproof.harness.workload.steps import Burst, Route, SetAdapter, Workload

SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large)
some = settings(max_examples=30, deadline=None, database=None, suppress_health_check=SLOW)
BUSY = AdapterLifecycle(routes=(Route.IN_PLACE,), goes_back=True, under_traffic=True, most_names=1, base_traffic=False)


def limits(slots: int = 4) -> WorkloadLimits:
    """Return limits with three contents and no mixture."""
    return WorkloadLimits(block=16, slots=slots, contents=("A", "B", "C"), mixtures=frozenset())


def changes(workload: Workload) -> list[tuple[str, bool]]:
    """Return the content of every load in order, and whether the load came under traffic."""
    found = []
    for step in workload.steps:
        if isinstance(step, SetAdapter):
            found.append((step.content, False))
        elif isinstance(step, Burst) and step.meanwhile is not None:
            found.append((step.meanwhile.change.content, True))
    return found


@some
@given(adapter_lifecycles(limits(), BUSY))
def test_a_lifecycle_under_traffic_returns_between_requests(workload: Workload) -> None:
    """A return under traffic would overlap the requests that are to be judged."""
    contents, busy = zip(*changes(workload), strict=True)
    assert contents[2] == contents[0] != contents[1]
    assert busy == (False, True, *[False] * (len(busy) - 2))
    assert {request.adapter for _, _, request in workload.requests()} == {"tenant"}


def test_an_engine_without_reloads_in_place_gets_none() -> None:
    """Returns and churn then use unload + load. With both routes the direct one comes first."""
    without = msgspec.structs.replace(limits(), can=frozenset(Capability) - {Capability.LORA_IN_PLACE})
    assert reload_routes(without) == (Route.UNLOAD_LOAD,)
    assert reload_routes(limits()) == (Route.IN_PLACE, Route.UNLOAD_LOAD)


@some
@given(adapter_churn(msgspec.structs.replace(limits(), can=frozenset(Capability) - {Capability.LORA_IN_PLACE})))
def test_churn_uses_only_routes_of_the_engine(workload: Workload) -> None:
    """No adapter is reloaded in place if the engine cannot do that."""
    routes = {step.route for step in workload.steps if isinstance(step, SetAdapter)}
    assert routes <= {Route.LOAD, Route.UNLOAD_LOAD}


@some
@given(st.integers(1, 20), st.booleans(), st.data())
def test_the_ground_rule_fills_any_number_of_slots(slots: int, unique: bool, data: st.DataObject) -> None:
    """There are as many names as slots, each loaded once, even if there are fewer near-equal names."""
    workload = data.draw(mixed_bursts(limits(slots), unique_salts=unique))
    loads = [step.name for step in workload.steps if isinstance(step, SetAdapter)]
    assert len(loads) == len(set(loads)) == slots
    assert {request.adapter for _, _, request in workload.requests()} <= {None, *loads}
