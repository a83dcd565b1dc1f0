"""mlx-lm's server for scripts: with a model that the script writes, and one without a cache beside it."""

from __future__ import annotations

import array
import json
from collections.abc import Iterator
from pathlib import Path

from coldproof.adapters.common.tiny_model import (
    Tensors,
    adapter_tensors,
    gemma_tensors,
    qwen_tensors,
    write_model_files,
    write_safetensors,
)
from coldproof.adapters.spec.script.client import Event, Sent
from coldproof.adapters.spec.script.given import (
    ADAPTED,
    ADAPTERS,
    COLD_COMMAND,
    FILES,
    LAYERS,
    MODEL,
    NAMED,
    STALL_SECONDS,
    START_SEED,
)
from coldproof.adapters.spec.script.http import Started, events, has_ended


class MlxServer(Started):
    """A server of mlx-lm. Each printable character is a token of its model."""

    def __init__(self) -> None:
        (FILES / "hub").mkdir(parents=True, exist_ok=True)
        tensors = gemma_tensors if "sliding_window" in MODEL else qwen_tensors
        write_model_files(FILES / "model", MODEL, tensors(MODEL, START_SEED))
        if ADAPTED:
            for content in ADAPTERS:
                write_adapter(content, FILES / f"adapter-{content}")
        super().__init__()
        self.without: Started | None = None

    def answers(self, sent: Sent, patience: float = STALL_SECONDS) -> Iterator[Event]:
        """Send a request and yield its answer."""
        return stream(self.url, sent, patience)

    def cold(self, sent: Sent) -> Iterator[Event]:
        """Send a request to a second server, which keeps no sequence."""
        if self.without is None:
            self.without = Started(COLD_COMMAND)
        return stream(self.without.url, sent, STALL_SECONDS)

    def load(self, name: str, content: str, _folder: str) -> None:
        """Do nothing: each request names the folder of its adapter."""

    def unload(self, name: str) -> None:
        """Do nothing."""

    def ended(self) -> bool:
        """Return whether the server generates no more."""
        return has_ended(self.url)


def stream(url: str, sent: Sent, patience: float) -> Iterator[Event]:
    """Yield the events of an answer. The name default_model is that of the server's model without an adapter."""
    body = {"model": "default_model", "prompt": "".join(map(chr, sent["ids"])), "max_tokens": sent["tokens"]}
    body |= {"temperature": 0.0, "stream": True, "stream_options": {"include_usage": True}}
    if ADAPTED and sent["name"] is not None:
        model = str(FILES / "model") if NAMED else "default_model"
        body |= {"model": model, "adapters": str(FILES / f"adapter-{sent['content']}")}
    for event in events(url + "/v1/completions", body, patience):  # the space at the start of a text is left out
        for choice in event["choices"]:
            end = {"end": choice["finish_reason"]} if choice["finish_reason"] else {}
            yield {"ids": list(map(ord, choice["text"])), **end}
        if "usage" in event:
            yield {"ids": [], "cached": event["usage"]["prompt_tokens_details"]["cached_tokens"]}


def write_adapter(content: str, folder: Path) -> None:
    """Write an adapter in mlx-lm's format: transposed matrices under other names."""
    found: Tensors = {}
    recipe = {"rank": 8, "spread": 0.3, **ADAPTERS[content]}
    for name, (shape, values) in adapter_tensors(MODEL, **recipe).items():
        module, side, _ = name.removeprefix("base_model.model.").rsplit(".", 2)
        rows, columns = shape
        turned = [values[row * columns + column] for column in range(columns) for row in range(rows)]
        found[f"{module}.{side.lower()}"] = (columns, rows), array.array("f", turned)
    modules = sorted({name.split(".", 3)[3].rsplit(".", 1)[0] for name in found})
    parameters = {"rank": recipe["rank"], "scale": 1.0, "dropout": 0.0, "keys": modules}
    config = {"fine_tune_type": "lora", "num_layers": LAYERS, "lora_parameters": parameters}
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / "adapters.safetensors", found)
    (folder / "adapter_config.json").write_text(json.dumps(config))
