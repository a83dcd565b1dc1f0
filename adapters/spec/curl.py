"""The steps of a case as curl commands: the interface for all engines, and the commands for OpenAI-compatible servers.

A step has plain values: names, folders and salts as the failed run sent them, and prompts as shell variables.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from coldproof.adapters.common.reset_route import reset_path
from coldproof.adapters.protocol.doors import Door
from coldproof.adapters.protocol.resets import ResetScope
from coldproof.adapters.spec.reproduction import RecordedEngine

QUOTE = '"'


class AdapterChange(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter content is bound to a name. `name`: the workload's name. `served`: the name that was sent.

    `folder`: the folder for the adapter's files. The flags say how the adapter was changed.
    """

    name: str
    served: str
    content: str
    folder: str
    unload_first: bool = False
    in_place: bool = False
    for_all: bool = False  # switched on for every request


class AtDoor(msgspec.Struct, frozen=True):
    """The path and the body of a request at a door of its own, without the name of the model."""

    path: str
    body: Mapping[str, object]


class CurlRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request. `prompt`: its token ids, separated by commas, with shell variables. `messages`: of a chat.

    `adapter`: the workload's name. `model`: the name that was sent. `extra`: more fields of OpenAI's request body.
    `options`: options of curl. `at`: the request at a door that is neither completions nor chats; None at these.
    `door`: the door, if the request names one.
    """

    model: str | None
    adapter: str | None
    max_tokens: int
    salt: str | None
    extra: Mapping[str, object]
    prompt: str
    messages: Sequence[Mapping[str, str]] | None
    options: str
    at: AtDoor | None = None
    door: Door | None = None


class CurlSteps(Protocol):
    """The commands that send the steps of one case to an engine. Each method returns lines of the shell."""

    def reset(self, scope: tuple[ResetScope, ...]) -> str:
        """Return the command that empties the cache and everything in `scope`."""

    def set_adapter(self, change: AdapterChange) -> str:
        """Return the commands that bind an adapter content to a name."""

    def unload(self, name: str, served: str) -> str:
        """Return the command that unloads a name."""

    def move_state(self, action: str, name: str, served: str) -> str:
        """Return the commands that save or restore the cache. `action`: `save` or `restore`."""

    def control(self, action: str, options: Mapping[str, str]) -> str:
        """Return the command for the weights or the scheduler: update_weights, pause, resume, sleep or wake_up."""

    def request(self, request: CurlRequest) -> str:
        """Return the command that sends a request."""


class LoraRouteCurl:
    """The commands for adapters on a server that loads and unloads them by routes and saves no cache."""

    load_path, unload_path = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"

    def __init__(self, engine: RecordedEngine) -> None:
        self.engine = engine

    def set_adapter(self, change: AdapterChange) -> str:
        """Return the commands that copy the adapter's files and load them."""
        folder = f'"$FILES"/{shlex.quote(change.folder)}'
        lines = [f'mkdir -p {folder} && cp "$FILES"/{shlex.quote(f"adapter-{change.content}")}/* {folder}/']
        if change.unload_first:
            lines.append(self.unload(change.name, change.served))
        body: dict[str, object] = {"lora_name": change.served, "lora_path": f"@/{change.folder}"}
        if change.in_place:
            body["load_inplace"] = True
        before, _, after = json.dumps(body).partition('"@')
        lines.append(post(self.load_path, f'{shlex.quote(before + QUOTE)}"$FILES"{shlex.quote(after)}'))
        return "\n".join(lines)

    def unload(self, _name: str, served: str) -> str:
        """Return the command that unloads a name."""
        return post(self.unload_path, shlex.quote(json.dumps({"lora_name": served})))

    def move_state(self, action: str, name: str, _served: str) -> str:
        """Return a comment: there is no route."""
        return comment(f"{action} the cache as {name!r}: this server has no route for it")

    def control(self, action: str, options: Mapping[str, str]) -> str:
        """Return a comment: there is no route."""
        return no_control(action, options)


class OpenAiCurl(LoraRouteCurl):
    """Commands for an OpenAI-compatible server with vLLM's routes for adapters and the cache."""

    def reset(self, scope: tuple[ResetScope, ...]) -> str:
        """Return the command that empties the cache and everything in `scope`."""
        return f'curl -X POST "$SERVER{reset_path(scope)}"'

    def control(self, action: str, options: Mapping[str, str]) -> str:
        """Return the command for vLLM's development routes. The script of the case writes the folders of weights."""
        if action == "update_weights":
            folder = f"weights-{options['version']}"
            before, _, after = json.dumps(
                {"method": "reload_weights", "kwargs": {"weights_path": f"@/{folder}"}}
            ).partition('"@')
            return post("/collective_rpc", f'{shlex.quote(before + QUOTE)}"$FILES"{shlex.quote(after)}')
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f'curl -X POST "$SERVER/{action}{"?" if query else ""}{query}"'

    def request(self, request: CurlRequest) -> str:
        """Return the command that sends a completion or a chat request."""
        if request.at is not None:
            return post_at_door(request, {**request.at.body, "model": request.model or "base"}, request.at.path)
        body: dict[str, object] = {"model": request.model or "base", "max_tokens": request.max_tokens}
        body |= {"temperature": 0, "seed": 0, "ignore_eos": True, "return_token_ids": True} | dict(request.extra)
        if request.salt is not None:
            body["cache_salt"] = request.salt
        if request.messages is not None:
            chat = json.dumps({"messages": request.messages} | body)
            return post("/v1/chat/completions", shlex.quote(chat), request.options)
        return post_prompt("/v1/completions", request, body)


def no_control(action: str, options: Mapping[str, str]) -> str:
    """Return a comment for an action that a server has no route for."""
    words = "".join(f" {name}={value}" for name, value in options.items())
    return comment(f"{action}{words}: this server has no route for it")


def comment(text: str) -> str:
    """Return a text as one line that a shell does not run."""
    return f"# {' '.join(text.split())}"


def post_prompt(path: str, request: CurlRequest, body: Mapping[str, object], *, field: str = "prompt") -> str:
    """Return the command that sends a request. `field`: the body's field for the prompt."""
    before, _, after = json.dumps({field: "@"} | dict(body)).partition('"@"')
    return post(path, f'{shlex.quote(before)}"[{request.prompt}]"{shlex.quote(after)}', request.options)


def post_at_door(request: CurlRequest, body: dict[str, object], path: str) -> str:
    """Return the command that sends a request at a door of its own, which takes token ids or messages."""
    field = next((name for name in ("token_ids", "input") if body.get(name) in ([], ())), None)
    if field is None:
        return post(path, shlex.quote(json.dumps(body)), request.options)
    del body[field]
    return post_prompt(path, request, body, field=field)


def post(path: str, body: str, options: str = "") -> str:
    """Return one POST command. `body`: the body, already quoted for the shell."""
    return f'curl {options}"$SERVER{path}" -H "Content-Type: application/json" -d {body}'
