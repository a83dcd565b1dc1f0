"""SGLang: a server that the user started, attached by its URL."""

from __future__ import annotations

from adapters import sglang
from harness.engines.kind import Kind

SGLANG = Kind(name="sglang", about="an SGLang server, attached", cells=(), attach=sglang.attach, quick=False)
