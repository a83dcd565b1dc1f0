"""How a reproducer starts and uses llama.cpp's server: its command, and the steps of a case as curl commands."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping

from coldproof.adapters.common import image_files
from coldproof.adapters.llamacpp import gguf, projector, setup
from coldproof.adapters.protocol import images
from coldproof.adapters.protocol.resets import ResetScope
from coldproof.adapters.spec.curl import AdapterChange, CurlRequest, comment, no_control, post, post_prompt
from coldproof.adapters.spec.reproduction import FILES, RecordedEngine, Reproduction, source_of, template_beside


def command(engine: RecordedEngine) -> str:
    """Return the server's command with the script's own files, with one adapter for each content, in their order."""
    words = re.sub(r"--port \d+", "--port 8000", engine.config.get("command", ""))
    words = re.sub(r" --lora \S+", "", words)
    words = re.sub(r"--slot-save-path \S+", f"--slot-save-path {FILES}/slots", words)
    if engine.generated_model:
        words = re.sub(r"--(model|mmproj) (?:\S*/)?", rf"--\1 {FILES}/", words)  # a finding's command has no folders
    return words + "".join(f" --lora {shlex.quote(f'{FILES}/adapter-{content}.gguf')}" for content in engine.contents)


class LlamaCppCurl:
    """Commands for a llama.cpp server. It registers its adapters at the start, in the order of the case's contents."""

    def __init__(self, engine: RecordedEngine) -> None:
        self.engine = engine
        self.contents: dict[str, str] = {}  # by adapter name
        self.for_all: str | None = None  # the name that is switched on for every request

    def reset(self, _scope: tuple[ResetScope, ...]) -> str:
        """Return a comment: there is no route."""
        return "# this server has no route that empties the cache"

    def set_adapter(self, change: AdapterChange) -> str:
        """Return a command if the adapter is switched on for every request; otherwise a comment."""
        self.contents[change.name] = change.content
        if not change.for_all:
            return comment(f"requests to {change.name!r} choose adapter {change.content}")
        self.for_all = change.name
        return self.scale(change.content)

    def unload(self, name: str, _served: str) -> str:
        """Return a command if the adapter is switched on for every request. No other adapter can be unloaded."""
        if name != self.for_all:
            return comment(f"no more requests to {name!r}")
        self.for_all = None
        return self.scale(None)

    def control(self, action: str, options: Mapping[str, str]) -> str:
        """Return a comment: there is no route."""
        return no_control(action, options)

    def move_state(self, action: str, _name: str, served: str) -> str:
        """Return a command for each slot of the case's server."""
        words = self.engine.config.get("command", "").split()
        slots = int(words[len(words) - words[::-1].index("--parallel")]) if "--parallel" in words else 1
        return "\n".join(
            post(f"/slots/{slot}?action={action}", shlex.quote(json.dumps({"filename": f"{served}-{slot}.bin"})))
            for slot in range(slots)
        )

    def request(self, request: CurlRequest) -> str:
        """Return the command that sends a request to /completion."""
        body: dict[str, object] = {"n_predict": request.max_tokens, "temperature": 0, "ignore_eos": True}
        body |= {"return_tokens": True, "cache_prompt": True}
        if request.adapter is None and self.for_all is not None:
            body["lora"] = self.scales(None)
        elif request.adapter is not None and request.adapter != self.for_all:
            body["lora"] = self.scales(self.contents[request.adapter])
        return post_prompt("/completion", request, body)

    def scale(self, content: str | None) -> str:
        """Return the command that switches on one adapter, or none, for every request."""
        return post("/lora-adapters", shlex.quote(json.dumps(self.scales(content), separators=(",", ":"))))

    def scales(self, content: str | None) -> list[dict[str, float]]:
        """Return the scales of all adapters: 1 for `content`, 0 for the others."""
        return [{"id": i, "scale": float(name == content)} for i, name in enumerate(self.engine.contents)]


# The server's file comes last: two of its constants have names of constants that it does not use.
WITH_IMAGES = Reproduction(
    template=template_beside(__file__),
    command=command,
    carries=(*map(source_of, (gguf, images, image_files, projector)), setup.SERVER),
    only_script=True,
)
LLAMACPP = Reproduction(
    template=template_beside(__file__),
    command=command,
    carries=(source_of(gguf), setup.SERVER),
    with_content=WITH_IMAGES,
)
