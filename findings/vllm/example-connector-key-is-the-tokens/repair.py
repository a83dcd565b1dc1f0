"""Add to the key of a prompt's files all that its KV depends on beside the tokens.

That is the salt, the adapter with the contents of its files, embedding rows with their places, the weights of the
model, its configuration with the overrides, and the format of the KV. The connector has a list of texts in its key, for
images, which takes them as well.

In the case of `vllm/example-connector-rounds-twice` both requests have other salts and adapters, so that it goes, too.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from coldproof.adapters.spec.repair import edit, part

RELEASES = "==0.32.0"
ALSO = ("vllm/example-connector-rounds-twice",)


def install() -> None:
    """Plant the repair."""
    connector = part("vllm.distributed.kv_transfer.kv_connector.v1.example_connector", "ExampleConnector")

    def digest(folder: str, pattern: str) -> str:
        files = sorted(Path(folder).glob(pattern))
        return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()

    def identity(self: Any, request: Any) -> list[str]:
        if not hasattr(self, "engine_identity"):
            model, cache = self._vllm_config.model_config, self._vllm_config.cache_config
            settings = repr((model.hf_config.to_json_string(), str(model.dtype), cache.cache_dtype))
            weights = digest(model.model, "*.safetensors")
            self.engine_identity = hashlib.sha256((settings + weights).encode()).hexdigest()
            self.identities = {}
        if hasattr(request, "cache_salt"):  # the scheduler's request; what it sends to the worker has no salt
            adapter = request.lora_request
            files = digest(adapter.lora_path, "adapter_*") if adapter else ""
            names = (adapter.lora_name, adapter.lora_path, files) if adapter else ()
            rows = request.prompt_embeds
            sent = () if rows is None else (rows.float().numpy().tobytes(), tuple(request.prompt_is_token_ids or ()))
            content = hashlib.sha256(repr(sent).encode()).hexdigest()
            own = repr((self.engine_identity, request.cache_salt, names, content))
            self.identities[request.request_id] = [f.identifier for f in request.mm_features] + [own]
        return list(self.identities[getattr(request, "request_id", None) or request.req_id])

    connector.identity = identity
    edit(
        connector, "_found_match_for_request", ("[f.identifier for f in request.mm_features]", "self.identity(request)")
    )
    edit(
        connector,
        "build_connector_meta",
        ("[f.identifier for f in new_req.mm_features]", "self.identity(new_req)"),
        ("[f.identifier for f in request.mm_features]", "self.identity(request)"),
    )
