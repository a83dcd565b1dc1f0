"""From symbolic prompts to what is sent: token ids, or the messages of a chat."""

from __future__ import annotations

from collections.abc import Mapping

from adapters.base import Message
from harness.history import Outcome
from harness.workload import Request, nonce_tokens, segment_tokens, text_of


def tokens_of(request: Request, nonce: str, outcomes: Mapping[int, Outcome]) -> tuple[int, ...]:
    """The tokens of a prompt under a nonce, behind the earlier request and its answer if it goes on from one."""
    own = tuple(t for segment in request.prompt.segments for t in segment_tokens(nonce, segment))
    before = outcomes.get(request.prompt.continues) if request.prompt.continues is not None else None
    if before is None:
        return nonce_tokens(nonce) + own
    return before.prompt + before.token_ids + own


def messages_of(
    request: Request, nonce: str, chats: Mapping[int, tuple[Message, ...]], outcomes: Mapping[int, Outcome]
) -> tuple[Message, ...]:
    """The messages of a chat: its segments, behind the earlier chat and its answer's text if it goes on from one."""
    own = [text_of(segment_tokens(nonce, segment)) for segment in request.prompt.segments]
    before = request.prompt.continues
    if before is not None and before in outcomes and before in chats:
        return (*chats[before], Message("assistant", outcomes[before].text), *in_turn(own))
    system = Message("system", text_of(nonce_tokens(nonce)) + own[0])
    return (system, *in_turn(own[1:]))


def in_turn(texts: list[str]) -> list[Message]:
    """Messages of user and assistant in turn."""
    return [Message(("user", "assistant")[i % 2], text) for i, text in enumerate(texts)]
