"""LMDeploy: an attached api_server. It was only tried against a script of its documented answers."""

from __future__ import annotations

from coldproof.adapters.lmdeploy.client import LmdeployClient
from coldproof.adapters.lmdeploy.probes import probe
from coldproof.adapters.lmdeploy.reproducer import LMDEPLOY
from coldproof.adapters.protocol.request_time import RequestTime
from coldproof.adapters.server.attach import attach_server
from coldproof.adapters.server.engine import ServerEngine
from coldproof.adapters.spec.engine_spec import AdapterFor, EngineSpec


def attach(url: str, *, adapter_for: AdapterFor, time: RequestTime | None = None) -> ServerEngine:  # noqa: ARG001 - no adapter can be loaded
    """Return the LMDeploy server at `url` after probing it. Raises EngineStartError if no server answers there."""
    return attach_server(url, name="lmdeploy", kind=LmdeployClient, probe=probe, time=time or RequestTime())


ENGINE = EngineSpec(
    name="lmdeploy",
    about="an LMDeploy server, attached",
    title="LMDeploy",
    attach=attach,
    quick=False,
    many_examples=False,
    reproduction=LMDEPLOY,
)
