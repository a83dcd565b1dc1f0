"""Workloads of the feature tiers, as its suites draw them."""

from __future__ import annotations

from coldproof.harness.features.tiers.load_workloads import (
    aborted_loads,
    loaded_behind_hits,
    loaded_together,
    loads_by_share,
)
from coldproof.harness.features.tiers.restart_workloads import (
    restarts_after_changes,
    restarts_between_prompts,
    restarts_without_changes,
)
from coldproof.harness.features.tiers.workloads import evicted_and_sent_again, first_block_changed

USUAL = {
    "restarts after changes": restarts_after_changes,
    "restarts without changes": restarts_without_changes,
    "restarts between prompts": restarts_between_prompts,
    "edited": first_block_changed,
    "loads by share": loads_by_share,
    "evicted": evicted_and_sent_again,
    "aborted loads": aborted_loads,
    "loaded behind hits": loaded_behind_hits,
}
RARE = {
    "loaded together": loaded_together,
}
