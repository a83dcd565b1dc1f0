"""Workloads of the feature salts, as its suites draw them."""

from __future__ import annotations

from coldproof.harness.features.salts.crossed_workloads import answers_then_turns, crossed
from coldproof.harness.features.salts.workloads import salted

USUAL = {
    "salts": lambda on: salted(on, with_adapter=True),
}
RARE = {
    "crossed salts": lambda on: crossed(on, adapters=False),
    "crossed adapters": lambda on: crossed(on, adapters=True),
    "answers and turns": answers_then_turns,
}
