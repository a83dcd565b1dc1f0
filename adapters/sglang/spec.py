"""SGLang: an attached server, or one that is started on a CPU, used through its own routes.

SGLang gives an adapter a new id with each load and keys its KV by that id. It refuses to load a name that is already
loaded, and it flushes its cache only while no request runs.
"""

from __future__ import annotations

from pathlib import Path

from coldproof.adapters.protocol.request_time import RequestTime
from coldproof.adapters.server.attach import attach_server
from coldproof.adapters.server.engine import ServerEngine
from coldproof.adapters.server.probes import ProbeResult
from coldproof.adapters.sglang.cells import CELLS, PROFILES
from coldproof.adapters.sglang.client import SglangClient
from coldproof.adapters.sglang.probes import probe, read_facts
from coldproof.adapters.sglang.repairs import planted
from coldproof.adapters.sglang.reproducer import SGLANG
from coldproof.adapters.sglang.server import start
from coldproof.adapters.sglang.switches import SWITCHES
from coldproof.adapters.sglang.weights import WEIGHTS, SglangEngine
from coldproof.adapters.spec.engine_spec import AdapterFor, EngineSpec, FaultCatalogue, RepairSupport


def attach(url: str, *, adapter_for: AdapterFor, time: RequestTime | None = None) -> ServerEngine:
    """Return the SGLang server at `url` after probing it. Raises EngineStartError if no SGLang server answers there."""

    def probe_server(client: SglangClient) -> ProbeResult:
        facts = read_facts(client)
        client.base_model = facts.name
        return probe(client, facts, adapter_for(facts.root))

    return attach_server(
        url,
        name="sglang",
        kind=SglangClient,
        probe=probe_server,
        time=time or RequestTime(),
        engine=SglangEngine,
    )


def faults() -> FaultCatalogue:
    """Return the catalogue of faults, which SGLang has for tests of its canary."""
    from coldproof.adapters.sglang import faults as catalogue

    return FaultCatalogue(
        faults=catalogue.FAULTS,
        listing=catalogue.listing,
        injected=catalogue.injected,
        acted=catalogue.has_acted,
    )


ENGINE = EngineSpec(
    name="sglang",
    about="SGLang's server, started on a CPU or attached",
    title="SGLang",
    cells=CELLS,
    start=start,
    attach=attach,
    package="sglang",
    quick=False,
    profiles=PROFILES,
    faults=faults,
    reproduction=SGLANG,
    repairs=RepairSupport(findings="sglang", planted=planted),
    known_issues=Path(__file__).with_name("known_issues.toml"),
    weights=WEIGHTS,
    switches=SWITCHES,
)
