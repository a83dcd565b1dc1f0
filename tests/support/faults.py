"""Injects a fault of the catalogue into the engines of this process."""

from __future__ import annotations

from coldproof.adapters.spec.fault import Patch
from coldproof.adapters.vllm.faults.catalogue import FAULTS
from coldproof.adapters.vllm.inproc import setup


def plant(name: str, patch: Patch) -> None:
    """Inject a fault into vLLM until the test is over. Importing vLLM here leaves the environment unchanged."""
    with setup.LOCK, setup.start_environment():
        FAULTS[name].plant(patch)


class Stoppable:
    """An engine that was just started."""

    stopped = False

    def stop(self) -> None:
        """Record that the engine was stopped."""
        self.stopped = True
