"""Workloads of the feature resets, as its suites draw them."""

from __future__ import annotations

from coldproof.harness.features.pressure.shared_workloads import pressed
from coldproof.harness.features.resets.scoped_workloads import (
    RUNNING,
    resets_during_stores,
    resets_of_running_requests,
    resets_of_the_second_tier,
)
from coldproof.harness.features.resets.workloads import (
    aborts,
    aborts_beside_sharers,
    changes_and_resets,
    resets,
    resets_before_idle_gaps,
)

USUAL = {
    "resets": resets,
    "resets before gaps": resets_before_idle_gaps,
    "changes and resets": changes_and_resets,
    "resets of running requests": resets_of_running_requests,
    "resets of a second tier": resets_of_the_second_tier,
    "aborts": aborts,
}
RARE = {
    "aborts beside sharers": aborts_beside_sharers,
    "pressure with resets": lambda on: pressed(on, disconnects=True, scopes=((), RUNNING)),
    "resets during stores": resets_during_stores,
}
