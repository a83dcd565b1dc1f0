"""SGLang: an attached server."""

from __future__ import annotations

from coldproof.adapters.sglang import attach
from coldproof.adapters.sglang.curl import SglangCurl
from coldproof.adapters.sglang.reproducer import SGLANG
from coldproof.adapters.spec.engine_spec import EngineSpec

ENGINE = EngineSpec(
    name="sglang",
    about="an SGLang server, attached",
    attach=attach.attach,
    quick=False,
    reproduction=SGLANG,
    curl=SglangCurl,
)
