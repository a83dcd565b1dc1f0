"""How a reproducer uses an LMDeploy server: as a script and as curl commands. The user starts it."""

from __future__ import annotations

from coldproof.adapters.lmdeploy.client import NO_RESET, LmdeployClient
from coldproof.adapters.protocol.resets import ResetScope
from coldproof.adapters.spec.curl import CurlRequest, LoraRouteCurl, post_prompt
from coldproof.adapters.spec.reproduction import RecordedEngine, Reproduction, attached_command, template_beside


def cold_note(_engine: RecordedEngine) -> str:
    """Return what the script needs for cold answers: the engine has no salts."""
    return "COLD_SERVER must be the address of a second server with prefix caching off."


LMDEPLOY = Reproduction(template=template_beside(__file__), command=attached_command, note=cold_note)


class LmdeployCurl(LoraRouteCurl):
    """Commands for the routes of an LMDeploy server."""

    def reset(self, _scope: tuple[ResetScope, ...]) -> str:
        """Return a comment: there is no route."""
        return f"# {NO_RESET}"

    def request(self, request: CurlRequest) -> str:
        """Return the command that sends a request."""
        body: dict[str, object] = {
            "model": request.model,
            "messages": "",
            "max_tokens": request.max_tokens,
            "temperature": 0,
            "top_k": 1,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        return post_prompt(str(LmdeployClient.generate_path), request, body, field="input_ids")
