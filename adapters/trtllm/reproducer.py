"""How a reproducer uses a TensorRT-LLM server: as a script and as curl commands. The user starts it."""

from __future__ import annotations

import json
import shlex

from coldproof.adapters.protocol.resets import ResetScope
from coldproof.adapters.spec.curl import AdapterChange, CurlRequest, LoraRouteCurl, comment, post_prompt
from coldproof.adapters.spec.reproduction import RecordedEngine, Reproduction, attached_command, template_beside
from coldproof.adapters.trtllm.client import NO_RESET, TrtllmClient


def cold_note(_engine: RecordedEngine) -> str:
    """Return what the script needs for cold answers: completions have no salts."""
    return "COLD_SERVER must be the address of a second server with enable_block_reuse off."


TRTLLM = Reproduction(template=template_beside(__file__), command=attached_command, note=cold_note)


class TrtllmCurl(LoraRouteCurl):
    """Commands for the routes of a TensorRT-LLM server. Each load of an adapter is a new id in later requests."""

    def __init__(self, engine: RecordedEngine) -> None:
        super().__init__(engine)
        self.loads = 0
        self.behind: dict[str, tuple[int, str]] = {}  # served name -> id and folder

    def reset(self, _scope: tuple[ResetScope, ...]) -> str:
        """Return a comment: there is no route."""
        return f"# {NO_RESET}"

    def set_adapter(self, change: AdapterChange) -> str:
        """Return the command that copies the adapter's files. Later requests carry the folder."""
        self.loads += 1
        self.behind[change.served] = (self.loads, change.folder)
        folder = f'"$FILES"/{shlex.quote(change.folder)}'
        return f'mkdir -p {folder} && cp "$FILES"/{shlex.quote(f"adapter-{change.content}")}/* {folder}/'

    def unload(self, _name: str, served: str) -> str:
        """Return a comment: the server evicts adapters by itself."""
        self.behind.pop(served, None)
        return comment(f"{served} is not sent any more")

    def request(self, request: CurlRequest) -> str:
        """Return the command that sends a request."""
        body: dict[str, object] = {
            "model": request.model if request.adapter is None else "",
            "max_tokens": request.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "add_special_tokens": False,
            "detokenize": False,
        }
        command = post_prompt(str(TrtllmClient.generate_path), request, body)
        if request.model not in self.behind:
            return command
        number, folder = self.behind[request.model]
        adapter = {"lora_name": request.model, "lora_int_id": number, "lora_path": f"@/{folder}"}
        before, _, after = json.dumps({"lora_request": adapter}).partition("@")
        carried = f'{shlex.quote(before[1:])}"$FILES"{shlex.quote(after[:-1] + ", ")}'
        return command.replace("-d '{", f"-d '{{'{carried}'", 1)
