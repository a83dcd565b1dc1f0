"""Sessions: requests that stay open after an answer and take further input (SESSIONS, STREAMING_SESSIONS).

A turn after the first is sent as the tokens that are new. What the model sees is what the session held, then these. An
engine holds what it has computed: all prompts and answers so far, without the last token of the latest answer. A
streaming session holds this token, too, each of its turns may have another adapter, and it may keep its KV to itself.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class HoldsSessions(Protocol):
    """An engine whose requests may be turns of a session (`session` and `held` in CompletionRequest).

    A turn that the client aborts ends its session, and so does an error. Requests to a session that has ended are
    refused.
    """

    def close_session(self, name: str, *, aborted: bool) -> None:
        """End a session: say that no input follows or, with `aborted`, disconnect. Do nothing if it has ended.

        Raises EngineDied.
        """
