"""Any OpenAI-compatible server, attached by its URL. Its capabilities are probed over HTTP."""

from __future__ import annotations

from coldproof.adapters.endpoint.client import EndpointClient
from coldproof.adapters.endpoint.engine import EndpointEngine
from coldproof.adapters.endpoint.probes import probe_endpoint
from coldproof.adapters.endpoint.reproducer import BY_URL
from coldproof.adapters.protocol.request_time import RequestTime
from coldproof.adapters.server.attach import attach_server
from coldproof.adapters.server.engine import ServerEngine
from coldproof.adapters.server.probes import ProbeResult
from coldproof.adapters.server.served_model import served_model
from coldproof.adapters.spec.engine_spec import ATTACH, AdapterFor, EngineSpec


def attach(url: str, *, adapter_for: AdapterFor, time: RequestTime | None = None) -> ServerEngine:
    """Return the server at `url` after probing it. Raises EngineStartError if no server answers there."""

    def probe_server(client: EndpointClient) -> ProbeResult:
        return probe_endpoint(client, adapter_for(served_model(client).root))

    return attach_server(
        url,
        name="endpoint",
        kind=EndpointClient,
        probe=probe_server,
        time=time or RequestTime(),
        engine=EndpointEngine,
    )


ENGINE = EngineSpec(
    name="endpoint",
    about="an OpenAI-compatible server",
    attach=attach,
    quick=False,
    many_examples=False,
    default_for=(ATTACH,),
    reproduction=BY_URL,
)
