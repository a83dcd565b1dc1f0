"""`--exclusive` promises that no other client uses an attached server. The server is watched before it is believed."""

from __future__ import annotations

from typing import Any, cast

import pytest

from coldproof.adapters.protocol.metrics import Metrics
from coldproof.harness.execution.engines.cell_start import check_idle
from coldproof.harness.options import UsageError

IDLE = Metrics(queried_tokens=640.0, hit_tokens=96.0, running=0.0, waiting=0.0)


class Watched:
    """A server with these metrics, one after the other."""

    def __init__(self, *read: Metrics) -> None:
        self.read = iter(read)

    def metrics(self) -> Metrics:
        """Return the next ones."""
        return next(self.read)


@pytest.mark.parametrize(
    ("later", "seen"),
    [
        pytest.param(Metrics(queried_tokens=704.0, hit_tokens=96.0), "counters grew (queried_tokens)", id="served"),
        pytest.param(Metrics(queried_tokens=640.0, running=1.0), "it has requests", id="runs"),
        pytest.param(Metrics(waiting=2.0), "it has requests", id="queues"),
    ],
)
def test_a_server_that_does_something_has_another_client(later: Metrics, seen: str) -> None:
    """Its counters would be compared with the requests of the run."""
    with pytest.raises(UsageError) as refusal:
        check_idle(cast(Any, Watched(IDLE, later)), pause=0.0)
    assert seen in str(refusal.value)


def test_an_idle_server_and_one_without_metrics_are_believed() -> None:
    """What is not published is compared with nothing."""
    check_idle(cast(Any, Watched(IDLE, IDLE)), pause=0.0)
    check_idle(cast(Any, Watched(Metrics(), Metrics())), pause=0.0)
