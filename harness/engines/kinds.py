"""Every engine beside vLLM, by its name on the command line."""

from __future__ import annotations

from harness.engines.kind import Kind
from harness.engines.llamacpp import LLAMACPP
from harness.engines.openvino import OPENVINO
from harness.engines.transformers import TRANSFORMERS

KINDS: dict[str, Kind] = {kind.name: kind for kind in (LLAMACPP, OPENVINO, TRANSFORMERS)}
