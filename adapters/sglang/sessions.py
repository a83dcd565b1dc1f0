"""Sessions of SGLang (`/open_session`, `session_params` of /generate): which are open, and what a turn's body says.

A turn names the turn that it goes on from (`rid`), and how many leading tokens of it it keeps (`offset`: SessionParams
in managers/io_struct.py). So it drops the last token of the answer before it, as the protocol has it. Turns of
streaming sessions (`--enable-streaming-session`) name nothing: they are appended to all that the session has seen.
"""

from __future__ import annotations

from typing import Any

from coldproof.adapters.protocol.engine import RequestRefused
from coldproof.adapters.protocol.requests import CompletionRequest
from coldproof.adapters.server.client import HttpClient

OPEN, CLOSE = "/open_session", "/close_session"
CAPACITY = 1 << 20  # `capacity_of_str_len`, which SGLang requires and does not use (0.5.23)


class OpenSessions:
    """The open sessions of a server, with the number of turns that each has had."""

    def __init__(self) -> None:
        self.turns: dict[str, int] = {}

    def begin(self, client: HttpClient, request: CompletionRequest) -> None:
        """Open the session of a turn that holds nothing. Raises RequestRefused if that of a later turn is not open."""
        assert request.session is not None
        if not request.held:
            streaming = {"streaming": True} if request.streaming else {}
            client.post(OPEN, {"capacity_of_str_len": CAPACITY, "session_id": request.session, **streaming})
            self.turns[request.session] = 0
        elif not self.turns.get(request.session):
            raise RequestRefused(400, f"session {request.session!r} is not open")

    def fields(self, request: CompletionRequest) -> dict[str, Any]:
        """Return the fields of a turn's body: its new tokens, its own name, and what it goes on from."""
        name = str(request.session)
        before = self.turns[name]
        params: dict[str, Any] = {"id": name}
        if before and not request.streaming:
            params |= {"rid": turn_name(name, before), "offset": request.held}
        return {
            "input_ids": list(request.prompt[request.held :]),
            "rid": turn_name(name, before + 1),
            "session_params": params,
        }

    def end(self, client: HttpClient, name: str) -> None:
        """Close a session, if it is open."""
        if self.turns.pop(name, None) is not None:
            client.post(CLOSE, {"session_id": name})


def turn_name(session: str, number: int) -> str:
    """Return the `rid` of a turn. No name begins with another: SGLang aborts all requests whose `rid` begins with the
    one that its client left (0.5.23: Scheduler.abort_request).
    """
    return f"{number}:{session}:"
