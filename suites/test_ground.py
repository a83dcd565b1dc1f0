"""The ground that every other requirement stands on: a cold engine's answer does not depend on the company it keeps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from adapters.base import Capability
from harness.evidence import Evidence
from harness.generators.ground import mixed_bursts
from harness.lab import Lab
from harness.requirement import requirement


@requirement(
    "GROUND-1",
    "alone and in any batch, caching off",
    needs=(Capability.TOKEN_PROMPTS, Capability.TOKEN_OUTPUTS),
    shows=(Evidence.TOGETHER,),
    shows_where={Capability.MIXED_ADAPTERS: Evidence.MIXED},
    upstream=("vllm#27034", "vllm#39146"),
)
@given(data=st.data())
def test_alone_and_in_any_batch(lab: Lab, data: st.DataObject) -> None:
    """With prefix caching off, a conforming engine answers the same alone and in any batch, base-model and adapter
    requests mixed included.

    Why it can break: batches mix requests of different adapters in one kernel call, and the rows without an adapter
    are the special case. Oracle: the same engine, one request at a time. Vacuous when nothing ran side by side or, on
    an engine that mixes them, no base-model request ran beside an adapter's. Where it fails the fault is the engine's
    but not the cache's; the other requirements go on without the mixtures that break it.
    """
    lab.check_without_cache(data.draw(mixed_bursts(lab.grounds, unique_salts=lab.unique_salts), label="workload"))
