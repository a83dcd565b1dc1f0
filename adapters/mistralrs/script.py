"""mistral.rs in the process of a script, with kept sequences and without."""

from __future__ import annotations

import argparse
import os
import secrets
from collections.abc import Iterator
from typing import Any

from coldproof.adapters.common.tiny_model import qwen_tensors, write_model_files
from coldproof.adapters.mistralrs.server import ONE_CALL, engine, events
from coldproof.adapters.spec.script.client import Event, Sent
from coldproof.adapters.spec.script.given import ADAPTED, ENVIRONMENT, FILES, MODEL, SETTINGS, START_SEED
from coldproof.adapters.spec.script.plain_files import write_adapter


class MistralRs:
    """An engine that keeps sequences, and one that keeps none."""

    def __init__(self) -> None:
        os.environ.update(ENVIRONMENT)
        write_model_files(FILES / "model", MODEL, qwen_tensors(MODEL, START_SEED))
        self.warm, self.without = runner(SETTINGS["kept"]), runner(0)

    def answers(self, sent: Sent, _patience: float = 0) -> Iterator[Event]:
        """Send a request and yield its answer."""
        return stream(self.warm, sent, sent["name"] if ADAPTED else None)

    def cold(self, sent: Sent) -> Iterator[Event]:
        """Send a request to the engine that keeps nothing, under a name of an adapter that was not used before."""
        name = None
        if ADAPTED and sent["content"] is not None:
            name = f"cold-{secrets.token_hex(4)}"
            write_adapter(sent["content"], FILES / name)
            self.without.load_lora_adapter(name, str(FILES / name))
        return stream(self.without, sent, name)

    def load(self, name: str, content: str, folder: str, *, in_place: bool = False) -> None:
        """Load an adapter, or replace it."""
        write_adapter(content, FILES / folder)
        with ONE_CALL:
            self.warm.load_lora_adapter(name, str(FILES / folder), load_inplace=in_place)

    def unload(self, name: str) -> None:
        """Unload an adapter."""
        with ONE_CALL:
            self.warm.unload_lora_adapter(name)

    def ended(self) -> bool:
        """Return False: a crash of the engine ends the script."""
        return False


def runner(kept: int) -> Any:
    """Return an engine that keeps this many sequences."""
    return engine(argparse.Namespace(model=str(FILES / "model"), kept=kept, most=8, lora=ADAPTED))


def stream(engine: Any, sent: Sent, adapter: str | None) -> Iterator[Event]:
    """Yield the events of an answer."""
    body = {"prompt": "".join(map(chr, sent["ids"])), "max_tokens": sent["tokens"], "adapter": adapter}
    for event in events(engine, body):
        for choice in event["choices"]:
            end = {"end": choice["finish_reason"]} if choice["finish_reason"] else {}
            yield {"ids": list(map(ord, choice["text"])), **end}
        if "usage" in event:
            yield {"ids": [], "cached": event["usage"]["prompt_tokens_details"]["cached_tokens"]}
