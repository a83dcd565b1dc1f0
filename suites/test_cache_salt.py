"""Cache salts: tenants that share prompts must not share KV."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from adapters.base import Capability
from harness.evidence import Evidence
from harness.generators.salts import salted
from harness.lab import Lab
from harness.requirement import requirement


@requirement(
    "SALT-1",
    "salts apart, equal salts together",
    needs=(Capability.TOKEN_PROMPTS, Capability.TOKEN_OUTPUTS, Capability.CACHED_TOKENS, Capability.CACHE_SALT),
    shows=(Evidence.STALE_CHANCES, Evidence.SALTED_HITS),
    upstream=("vllm#20981", "vllm#47696", "vllm#44701", "sglang#24638"),
)
@given(data=st.data())
def test_salts_keep_apart_what_they_should(lab: Lab, data: st.DataObject) -> None:
    """A conforming engine never shares KV between different salts (or salt and none), near-equal salts and salts that
    equal an adapter's name included; the same salt does share.

    Why it can break: entry points drop the salt (vllm PR#20981, PR#47696), and untagged keys let a salt pass for an
    adapter's name (vllm#44701). Oracle: the reference cache, for equal prompts under two salts answer alike; and cold
    start. Vacuous when no block of another salt lay ready, or nothing was ever hit under a salt.
    """
    # Several answers are SURFACE-1's matter: vLLM 0.32.0 dies of seeded ones where a prompt is computed in chunks.
    story = salted(lab.grounds, with_adapter=lab.can(Capability.ADAPTER_CHOICE), several=not lab.cell.chunked)
    lab.check(data.draw(story, label="workload"))
