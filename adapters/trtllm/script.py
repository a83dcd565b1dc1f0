"""A client of a TensorRT-LLM server for scripts."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

from coldproof.adapters.spec.script.client import Event, Sent
from coldproof.adapters.spec.script.given import ADAPTED, EXTRA, FILES, STALL_SECONDS
from coldproof.adapters.spec.script.http import argument, cold_server, events, get
from coldproof.adapters.spec.script.plain_files import write_adapter


class TrtllmServer:
    """A TensorRT-LLM server, and a second one without block reuse. Requests carry their adapters."""

    def __init__(self) -> None:
        self.url = argument()
        self.base = get(self.url + "/v1/models")["data"][0]["id"]
        if ADAPTED:
            self.loaded: dict[str | None, Event] = {}
            self.number = secrets.randbelow(1_000_000) * 100  # the server may know ids of earlier attempts

    def load(self, name: str, content: str, folder: str, *, in_place: bool = False) -> None:
        """Write an adapter's files. Later requests to the name carry them under a new id."""
        write_adapter(content, FILES / folder)
        self.number += 1
        carried = {"lora_name": f"adapter-{self.number}", "lora_int_id": self.number}
        self.loaded[name] = {**carried, "lora_path": str(FILES / folder)}

    def unload(self, name: str) -> None:
        """Forget a name."""
        self.loaded.pop(name, None)

    def answers(self, sent: Sent, patience: float) -> Iterator[Event]:
        """Send a request and yield its answer."""
        return self.stream(self.url, sent, patience)

    def cold(self, sent: Sent) -> Iterator[Event]:
        """Send a request to the server without block reuse."""
        new = f"cold-{secrets.token_hex(4)}"
        if ADAPTED and sent["content"] is not None:
            self.load(new, sent["content"], new)
        return self.stream(cold_server(), {**sent, "name": new}, STALL_SECONDS)

    def stream(self, url: str, sent: Sent, patience: float) -> Iterator[Event]:
        """Yield an answer, which has token ids because it is not made into text."""
        body: dict[str, Any] = {"model": self.base, "prompt": sent["ids"], "max_tokens": sent["tokens"]}
        body |= {"temperature": 0, "seed": 0, "ignore_eos": True, "add_special_tokens": False, "detokenize": False}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        if ADAPTED and sent["name"] in self.loaded:
            body["lora_request"] = self.loaded[sent["name"]]
        if EXTRA:
            wanted = sent.get("extra", {})
            body |= {name: wanted[name] for name in ("stop", "ignore_eos") if name in wanted}
            body |= {"logprobs": 2} if "logprobs" in wanted else {}
        for event in events(url + "/v1/completions", body, patience):
            if event.get("error"):
                raise ValueError(event["error"])
            yield event
