"""Cache salts: tenants with equal prompts must not share KV."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.cell_traits import CellTrait
from coldproof.harness.features.lora.evidence import Adapters
from coldproof.harness.features.salts.crossed_workloads import crossed
from coldproof.harness.features.salts.evidence import Salts
from coldproof.harness.features.salts.workloads import salted
from coldproof.harness.judgement.requirement import requirement
from coldproof.harness.session.system_under_test import SystemUnderTest
from coldproof.harness.workload.generators.rare import with_rare

AREA = "cache salts"


@requirement(
    "SALT-1",
    "different salts isolated, equal salts shared",
    needs=(Capability.TOKEN_PROMPTS, Capability.TOKEN_OUTPUTS, Capability.CACHED_TOKENS, Capability.CACHE_SALT),
    suits=(CellTrait.BLOCK_KEYS, CellTrait.KV_LAYOUT),
    shows=(Adapters.STALE_CHANCES, Salts.HITS, Salts.ALMOST),
    shows_where={Capability.ADAPTER_CHOICE: Salts.LIKE_A_NAME},
    upstream=("vllm#20981", "vllm#47696", "vllm#44701", "sglang#24638"),
)
@given(data=st.data())
def test_salts_isolate_the_cache(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A conforming engine never shares KV between different salts, or between a salt and no salt. This includes salts
    that are almost equal and salts that equal an adapter's name. Requests with the same salt do share KV.

    Why it can break: entry points drop the salt (vllm PR#20981, PR#47696), and with untagged keys a salt can match an
    adapter's name (vllm#44701). Oracle: the reference cache, because equal prompts with two salts have equal answers;
    and cold start. Vacuous when no block of another salt, of an almost equal one, or of an adapter with the salt's name
    was cached for a prompt, or no request with a salt hit anything.
    """
    # SURFACE-1 tests several answers. vLLM 0.32.0 crashes on seeded ones where a prompt is computed in chunks.
    workload = salted(sut.limits, with_adapter=sut.can(Capability.ADAPTER_CHOICE), several=not sut.cell.chunked)
    sut.check(data.draw(with_rare(sut.limits, workload, crossed(sut.limits, adapters=False)), label="workload"))
