"""Finds the cache resets after which an engine stayed idle: it had time to announce them without another request."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from coldproof.harness.history.records import History, ResetRecord
from coldproof.harness.workload.steps import ANNOUNCED_MS, Idle, Reset


def quiet_resets(history: History) -> Iterator[tuple[ResetRecord, float]]:
    """Yield each successful reset that only an idle gap of ANNOUNCED_MS or more follows, and when that gap ended."""
    for record, gap in itertools.pairwise(history.steps):
        step, then = history.workload.steps[record.step], history.workload.steps[gap.step]
        if isinstance(step, Reset) and step.prefix and isinstance(then, Idle) and then.ms >= ANNOUNCED_MS:
            for reset in history.resets:
                if reset.success and record.started <= reset.began and reset.ended <= record.finished:
                    yield reset, gap.finished
