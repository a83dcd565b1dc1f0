"""llama.cpp's server for scripts: started with the package xllamacpp, or one that runs already."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import Any

from coldproof.adapters.common.image_files import image_in_base64
from coldproof.adapters.llamacpp.llama_server import parameters
from coldproof.adapters.llamacpp.projector import SIDE, write_projector
from coldproof.adapters.protocol.images import image_and_offset, is_image, pixels, sent_image
from coldproof.adapters.spec.script.client import Event, Sent
from coldproof.adapters.spec.script.gguf_files import write_adapters, write_model
from coldproof.adapters.spec.script.given import (
    ADAPTED,
    ADAPTERS,
    FILES,
    GENERATED,
    IMAGES,
    REMADE,
    SETTINGS,
    STALL_SECONDS,
    START_SEED,
    SWITCHES,
    WIDTH,
)
from coldproof.adapters.spec.script.http import events, get, has_ended, post


class LlamaServer:
    """A llama.cpp server with the adapters of ADAPTERS, in their order."""

    def __init__(self) -> None:
        if GENERATED:
            write_files(START_SEED)
        self.url = ""
        self.server: Any = None
        self.start()
        if SWITCHES:
            self.for_all: str | None = None  # the adapter that is switched on for all requests

    def start(self) -> None:
        """Start the server, unless the script's argument is the URL of one."""
        if sys.argv[1:] and sys.argv[1] != "child":
            self.url = sys.argv[1].rstrip("/")
            return
        xllamacpp: Any = importlib.import_module("xllamacpp")
        self.server = xllamacpp.Server(parameters(xllamacpp, SETTINGS))
        self.url = self.server.listening_address

    def load(self, name: str, content: str, _folder: str, *, for_all: bool = False) -> None:
        """With `for_all`, switch an adapter on for all requests that choose none. The server has it already."""
        if SWITCHES and for_all:
            self.switch(content)
            self.for_all = name

    def unload(self, name: str) -> None:
        """Switch off an adapter, if it is on for all requests."""
        if SWITCHES and name == self.for_all:
            self.switch(None)
            self.for_all = None

    def switch(self, content: str | None) -> None:
        """Switch on one adapter, or none, for all requests that choose none."""
        post(self.url + "/lora-adapters", scales(content))

    def answers(self, sent: Sent, patience: float = STALL_SECONDS) -> Iterator[Event]:
        """Send a request and yield its answer. One to the base model names no adapter, unless one is on."""
        if not ADAPTED:
            return self.stream(sent, patience, {})
        more: Event = {} if sent["name"] is None else {"lora": scales(sent["content"])}
        if IMAGES and sent["name"] is None and with_images(sent["ids"]):
            more = {"lora": scales(None)}
        if SWITCHES and self.for_all is not None:
            more = {"lora": scales(None)} if sent["name"] is None else more if sent["name"] != self.for_all else {}
        return self.stream(sent, patience, more)

    def cold(self, sent: Sent) -> Iterator[Event]:
        """Send a request alone, without the cache and with the right adapter."""
        if ADAPTED:
            return self.stream(sent, STALL_SECONDS, {"cache_prompt": False, "lora": scales(sent["content"])})
        return self.stream(sent, STALL_SECONDS, {"cache_prompt": False})

    def stream(self, sent: Sent, patience: float, more: Event) -> Iterator[Event]:
        """Yield the events of an answer."""
        body = {"prompt": sent["ids"], "n_predict": sent["tokens"], "temperature": 0, "ignore_eos": True}
        if IMAGES and with_images(sent["ids"]):
            body["prompt"] = self.with_files(sent)
        body |= {"return_tokens": True, "stream": True, "cache_prompt": True, **more}
        for event in events(self.url + "/completion", body, patience):
            if "error" in event:
                raise ValueError(event["error"].get("message"))
            end = {"end": "length", "cached": event.get("timings", {}).get("cache_n")} if event["stop"] else {}
            yield {"ids": event.get("tokens") or [], **end}

    def with_files(self, sent: Sent) -> Event:
        """Return a prompt with images as llama.cpp takes it: a text with markers, and files."""
        marker = get(self.url + "/props")["media_marker"]
        files, words = [], []
        for number, hidden in zip(sent["ids"], sent["hidden"], strict=True):
            if not is_image(number):
                words.append(chr(number))
                continue
            image, offset = image_and_offset(number)
            if not offset:
                words.append(marker)
                files.append(image_in_base64(pixels(image, SIDE), SIDE, sent_image(hidden).encoding))
        return {"prompt_string": "".join(words), "multimodal_data": files}

    def save(self, name: str) -> None:
        """Save every slot to a file."""
        self.move("save", name)

    def restore(self, name: str) -> None:
        """Restore every slot from its file."""
        self.move("restore", name)

    def move(self, action: str, name: str) -> None:
        """Save or restore every slot."""
        for slot in get(self.url + "/slots"):
            post(f"{self.url}/slots/{slot['id']}?action={action}", {"filename": f"{name}-{slot['id']}.bin"})

    def reset(self) -> None:
        """Print that llama.cpp cannot reset its cache."""
        print("reset: llama.cpp has no route for it")

    def restart(self, before: str) -> None:
        """Replace the server by one over the same files, without what was different about it up to here."""
        if REMADE:
            write_files(seed=0)
        if self.server is None:
            input(f"Up to here the server had {before}. Stop it, start it again without that, and press Enter: ")
        else:
            self.server = None
            self.start()

    def ended(self) -> bool:
        """Return whether the server has ended."""
        return has_ended(self.url)


def scales(content: str | None) -> list[dict[str, float]]:
    """Return the scales of all adapters: 1 for `content`, 0 for the others."""
    return [{"id": number, "scale": float(name == content)} for number, name in enumerate(ADAPTERS)]


def with_images(ids: list[int]) -> bool:
    """Return whether a prompt has an image."""
    return any(map(is_image, ids))


def write_files(seed: int) -> None:
    """Write the model and the adapters, and create a folder for saved slots."""
    (FILES / "slots").mkdir(parents=True, exist_ok=True)
    write_model(seed)
    if IMAGES:
        write_projector(FILES / "projector.gguf", WIDTH)
    if ADAPTED:
        write_adapters()
