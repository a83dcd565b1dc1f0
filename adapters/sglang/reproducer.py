"""How a reproducer uses an SGLang server: as a script and as curl commands. The user starts it with the run's flags."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping

from coldproof.adapters.protocol.doors import Door
from coldproof.adapters.protocol.requests import CompletionRequest, Message
from coldproof.adapters.protocol.resets import ResetScope
from coldproof.adapters.protocol.weights import PauseMode
from coldproof.adapters.sglang import doors
from coldproof.adapters.sglang.weights import CONTINUE, PAUSE, UPDATE, pause_mode, updates_flush
from coldproof.adapters.spec.curl import CurlRequest, LoraRouteCurl, no_control, post, post_prompt
from coldproof.adapters.spec.reproduction import RecordedEngine, Reproduction, attached_command, template_beside

BASE = "@base@"  # stands for the base model's name in a body that is quoted for the shell
READ_BASE = """'"$(curl -s "$SERVER/v1/models" | jq -r '.data[0].id')"'"""
SGLANG = Reproduction(template=template_beside(__file__), command=attached_command)


class SglangCurl(LoraRouteCurl):
    """Commands for the routes of an SGLang server."""

    load_path, unload_path = "/load_lora_adapter", "/unload_lora_adapter"

    def __init__(self, engine: RecordedEngine) -> None:
        super().__init__(engine)
        self.flushes = updates_flush(engine.config)

    def reset(self, _scope: tuple[ResetScope, ...]) -> str:
        """Return the command that empties the cache."""
        return 'curl -X POST "$SERVER/flush_cache"'

    def control(self, action: str, options: Mapping[str, str]) -> str:
        """Return the command for the weights or a pause. The script of the case writes the folders of weights."""
        match action:
            case "update_weights":
                body = {"model_path": f"@/weights-{options['version']}", "flush_cache": self.flushes}
                before, _, after = json.dumps(body).partition("@")
                return post(UPDATE, f'{shlex.quote(before)}"$FILES"{shlex.quote(after)}')
            case "pause" if options["mode"] != PauseMode.WAIT.value:
                clear = options["clear_cache"] == "true"
                mode = pause_mode(options["mode"], clear=clear, flushes=self.flushes)
                command = post(PAUSE, shlex.quote(json.dumps({"mode": mode})))
                return f"{command}\n{self.reset(())}" if clear else command
            case "resume":
                return post(CONTINUE, "'{}'")
        return no_control(action, options)

    def request(self, request: CurlRequest) -> str:
        """Return the command that sends a request: to /generate, or a chat to another door."""
        door = request.door or (None if request.messages is None else Door.CHAT)
        if door in doors.WHOLE:
            return self.at_door(request, door)
        sampling = {"max_new_tokens": request.max_tokens, "temperature": 0, "ignore_eos": True}
        body: dict[str, object] = {"sampling_params": sampling}
        if request.adapter is not None and request.model is not None:
            body["lora_path"] = request.model
        if request.salt is not None:
            body["cache_salt"] = request.salt
        return post_prompt("/generate", request, body, field="input_ids")

    def at_door(self, request: CurlRequest, door: Door) -> str:
        """Return the command that sends a request to a door beside /generate. It reads the base model's name from the
        server, where it needs it.
        """
        sent = CompletionRequest(
            model=request.model or BASE,
            prompt=(),
            messages=tuple(Message(message["role"], message["content"]) for message in request.messages or ()),
            max_tokens=request.max_tokens,
            cache_salt=request.salt,
        )
        base = sent.model if request.adapter is None else BASE
        body = doors.body(sent, door, base, "cache_salt") | dict(request.extra)
        if door is Door.COMPLETIONS:
            command = post_prompt(door.value, request, body)
        else:
            command = post(door.value, shlex.quote(json.dumps(body)), request.options)
        return command.replace(BASE, READ_BASE)
