"""An engine behind HTTP: what the spawned and the attached server have in common.

It only translates; what the server can do was found out by `adapters.probes`, not assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from adapters.base import Capability, Completion, CompletionRequest, EngineShape, Metrics, Support
from adapters.openai_http import Wire
from adapters.probes import Probed, is_success
from adapters.process import EngineProcess


class ServerEngine:
    """An OpenAI-compatible server; spawned if there is a process, attached otherwise."""

    def __init__(
        self, *, name: str, wire: Wire, probed: Probed, config: Mapping[str, str], process: EngineProcess | None = None
    ) -> None:
        self.name = name
        self.wire = wire
        self.probed = probed
        self.process = process
        self._config = dict(config)

    @property
    def version(self) -> str | None:
        """What /version says."""
        return self.probed.version

    @property
    def base_model(self) -> str:
        """The first served model that is no adapter."""
        return self.probed.base_model

    @property
    def shape(self) -> EngineShape:
        """As published in the metrics."""
        return self.probed.shape

    @property
    def config(self) -> Mapping[str, str]:
        """How it was started or reached, with what it says of its cache."""
        return {**self._config, **self.probed.cache_config}

    @property
    def capabilities(self) -> Mapping[Capability, Support]:
        """Probed, with evidence."""
        return self.probed.capabilities

    def complete(self, request: CompletionRequest, on_token: Callable[[int], None] | None = None) -> Completion:
        """One generation, sent once."""
        answer = self.wire.complete(request, on_token)
        if answer.cached_tokens is None and self.probed.null_is_miss:
            return Completion(tokens=answer.tokens, finish_reason=answer.finish_reason, cached_tokens=0)
        return answer

    def load_adapter(self, name: str, path: str, *, in_place: bool) -> None:
        """POST /v1/load_lora_adapter."""
        load_adapter(self.wire, name, path, in_place=in_place)

    def unload_adapter(self, name: str) -> None:
        """POST /v1/unload_lora_adapter."""
        unload_adapter(self.wire, name)

    def reset_cache(self) -> bool:
        """POST /reset_prefix_cache."""
        return reset_cache(self.wire)

    def metrics(self) -> Metrics:
        """GET /metrics."""
        return self.wire.metrics()

    def alive(self) -> bool:
        """The process for a spawned engine; an attached one is asked when it is used."""
        return self.wire.alive()

    def log_tail(self) -> str:
        """The log's end, if the log is ours."""
        return self.process.tail() if self.process else ""

    def stop(self) -> None:
        """End the process, if it is ours."""
        if self.process:
            self.process.stop()


def load_adapter(wire: Wire, name: str, path: str, *, in_place: bool) -> None:
    """Load or replace an adapter. Raises RequestRefused with the server's reason."""
    body: dict[str, object] = {"lora_name": name, "lora_path": path}
    if in_place:
        body["load_inplace"] = True
    wire.post("/v1/load_lora_adapter", body)


def unload_adapter(wire: Wire, name: str) -> None:
    """Unload an adapter. Raises RequestRefused with the server's reason."""
    wire.post("/v1/unload_lora_adapter", {"lora_name": name})


def reset_cache(wire: Wire) -> bool:
    """Ask for a reset; whether the server says that it did it."""
    return is_success(wire.post("/reset_prefix_cache").text)
