"""Any OpenAI-compatible server, attached by its URL."""

from __future__ import annotations

from coldproof.adapters.openai import attach
from coldproof.adapters.spec.engine_spec import ATTACH, EngineSpec

ENGINE = EngineSpec(
    name="endpoint",
    about="an OpenAI-compatible server",
    attach=attach.attach,
    quick=False,
    many_examples=False,
    default_for=(ATTACH,),
)
