"""How a reproducer uses a server by URL that has not vLLM's fields."""

from __future__ import annotations

from collections.abc import Mapping

from coldproof.adapters.endpoint.cold import ColdWay
from coldproof.adapters.endpoint.forms import OWN_FIELDS, Form
from coldproof.adapters.spec.reproduction import RecordedEngine, Reproduction, attached_command

FORM, COLD_WAY, DISPLACING = "form of requests", "cold answers", "prompts before a cold answer"  # in the configuration


def settings(engine: RecordedEngine) -> Mapping[str, object]:
    """Return the form of requests, and how one gets past the cache: by a second server, if no way is recorded."""
    way = next((way.name for way in ColdWay if engine.config.get(COLD_WAY) == way.value), "")
    characters = engine.config.get(FORM) == Form.CHARACTERS.value
    return {"CHARACTERS": characters, "COLD_WAY": way, "DISPLACING": int(engine.config.get(DISPLACING, "0"))}


BY_URL = Reproduction(
    client="coldproof.adapters.endpoint.script:UrlServer",
    command=attached_command,
    settings=settings,
    suits=lambda engine: engine.config.get(FORM, "") not in ("", *(form.value for form in OWN_FIELDS)),
)
