"""Plants a fault of the catalogue in the engines of this process, and takes it out again."""

from __future__ import annotations

from coldproof.adapters.spec.fault import Patch
from coldproof.adapters.vllm.faults.catalogue import FAULTS
from coldproof.adapters.vllm.inproc import setup


def plant(name: str, patch: Patch) -> None:
    """Break vLLM until the test is over. Importing it leaves no trace in the environment, as the adapter's does not."""
    with setup.LOCK, setup.start_environment():
        FAULTS[name].plant(patch)
