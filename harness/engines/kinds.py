"""Every engine beside vLLM, by its name on the command line."""

from __future__ import annotations

from adapters import endpoint
from harness.engines.kind import Kind
from harness.engines.llamacpp import LLAMACPP
from harness.engines.openvino import OPENVINO
from harness.engines.sglang import SGLANG
from harness.engines.transformers import TRANSFORMERS

KINDS: dict[str, Kind] = {kind.name: kind for kind in (LLAMACPP, OPENVINO, TRANSFORMERS, SGLANG)}
ENDPOINT = Kind(name="endpoint", about="an OpenAI-compatible server", cells=(), attach=endpoint.attach, quick=False)


def attached(engine: str, url: str | None) -> Kind | None:
    """The kind that somebody else's process is attached as; None for an engine that Coldproof starts."""
    kind = ENDPOINT if engine == ENDPOINT.name else KINDS.get(engine)
    if kind is None or kind.attach is None:
        return None
    return kind if url is not None or kind.start is None else None
