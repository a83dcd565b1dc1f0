"""How a reproducer uses an SGLang server: as a script and as curl commands. The user starts it with the run's flags."""

from __future__ import annotations

from coldproof.adapters.protocol.resets import ResetScope
from coldproof.adapters.spec.curl import CurlRequest, LoraRouteCurl, post_prompt
from coldproof.adapters.spec.reproduction import Reproduction, attached_command, template_beside

SGLANG = Reproduction(template=template_beside(__file__), command=attached_command)


class SglangCurl(LoraRouteCurl):
    """Commands for the routes of an SGLang server."""

    load_path, unload_path = "/load_lora_adapter", "/unload_lora_adapter"

    def reset(self, _scope: tuple[ResetScope, ...]) -> str:
        """Return the command that empties the cache."""
        return 'curl -X POST "$SERVER/flush_cache"'

    def request(self, request: CurlRequest) -> str:
        """Return the command that sends a request to /generate."""
        sampling = {"max_new_tokens": request.max_tokens, "temperature": 0, "ignore_eos": True}
        body: dict[str, object] = {"sampling_params": sampling}
        if request.adapter is not None and request.model is not None:
            body["lora_path"] = request.model
        if request.salt is not None:
            body["cache_salt"] = request.salt
        return post_prompt("/generate", request, body, field="input_ids")
