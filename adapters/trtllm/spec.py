"""TensorRT-LLM: an attached `trtllm-serve`. It was only tried against a script of its documented answers."""

from __future__ import annotations

from coldproof.adapters.protocol.request_time import RequestTime
from coldproof.adapters.server.attach import attach_server
from coldproof.adapters.server.engine import ServerEngine
from coldproof.adapters.server.probes import ProbeResult
from coldproof.adapters.spec.engine_spec import AdapterFor, EngineSpec
from coldproof.adapters.trtllm.client import TrtllmClient
from coldproof.adapters.trtllm.probes import probe
from coldproof.adapters.trtllm.reproducer import TRTLLM


def attach(url: str, *, adapter_for: AdapterFor, time: RequestTime | None = None) -> ServerEngine:
    """Return the server at `url` after probing it. Raises EngineStartError if no server answers there."""

    def probe_server(client: TrtllmClient) -> ProbeResult:
        return probe(client, adapter_for(None))  # the server does not report the folder of its model

    return attach_server(url, name="trtllm", kind=TrtllmClient, probe=probe_server, time=time or RequestTime())


ENGINE = EngineSpec(
    name="trtllm",
    about="a TensorRT-LLM server, attached",
    title="TensorRT-LLM",
    attach=attach,
    quick=False,
    many_examples=False,
    reproduction=TRTLLM,
)
