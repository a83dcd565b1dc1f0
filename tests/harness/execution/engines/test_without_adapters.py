"""A model that no adapter of the run fits has none, whatever its engine could load."""

from __future__ import annotations

from pathlib import Path

from support.across import crossed_engines, honest, tampering

from coldproof.adapters.protocol.capabilities import OF_ADAPTERS, Capability
from coldproof.adapters.spec.cell import ModelLayers
from coldproof.harness.session.workload_limits import workload_limits


def test_no_workload_of_a_model_without_adapters_loads_any(tmp_path: Path) -> None:
    """The engine loads adapters at run time: a generator that asked the engine alone would draw a missing one."""
    with crossed_engines(tmp_path, tampering(honest), tampering(honest)) as sut:
        assert Capability.ADAPTER_CHOICE in workload_limits(sut.engines, trial_seconds=60).can
        sut.engines.pool.files.contents[ModelLayers.FULL] = {}
        assert not sut.can(Capability.ADAPTER_CHOICE)
        assert OF_ADAPTERS.isdisjoint(workload_limits(sut.engines, trial_seconds=60).can)
