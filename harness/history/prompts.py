"""From symbolic prompts to what is sent: token ids, or the messages of a chat."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from coldproof.adapters.protocol.embedding_rows import NO_ROW
from coldproof.adapters.protocol.requests import Message
from coldproof.harness.history.records import Outcome
from coldproof.harness.workload.steps import Request
from coldproof.harness.workload.tokens import (
    NONCE_TOKENS,
    first_tokens,
    hidden_tokens,
    nonce_tokens,
    segment_tokens,
    text_of,
)

# Requests of a workload share segments, and a long one takes tenths of a second to draw. A few are kept: each may have
# 250,000 tokens.
kept_tokens = functools.lru_cache(maxsize=16)(segment_tokens)


def tokens_of(request: Request, nonce: str, outcomes: Mapping[int, Outcome]) -> tuple[int, ...]:
    """Return the tokens of a prompt with a nonce, after the earlier request and its answer if it continues one, or
    after the part of these that is left of a cut history.
    """
    prompt = request.prompt
    own = tuple(t for segment in prompt.segments for t in kept_tokens(nonce, segment))
    before = outcomes.get(prompt.continues) if prompt.continues is not None else None
    if before is None:
        return first_tokens(nonce, prompt.segments) + own
    return (before.prompt + before.token_ids)[prompt.start : prompt.end] + own


def hidden_of(request: Request, nonce: str, outcomes: Mapping[int, Outcome]) -> tuple[int, ...]:
    """Return what a prompt with rows or images carries without the model seeing it; empty for a prompt of tokens.

    A next turn carries the rows of the request that it continues, and no rows under the tokens of that answer.
    """
    prompt = request.prompt
    before = outcomes.get(prompt.continues) if prompt.continues is not None else None
    earlier = before.hidden if before is not None else ()
    if not earlier and not any(segment.rows or segment.image for segment in prompt.segments):
        return ()
    own = tuple(t for segment in prompt.segments for t in hidden_tokens(nonce, segment))
    if before is None:
        return (NO_ROW,) * NONCE_TOKENS + own
    start = earlier or (NO_ROW,) * len(before.prompt)
    return (start + (NO_ROW,) * len(before.tokens))[prompt.start : prompt.end] + own


def messages_of(
    request: Request, nonce: str, chats: Mapping[int, tuple[Message, ...]], outcomes: Mapping[int, Outcome]
) -> tuple[Message, ...]:
    """Return the messages of a chat: its segments, after the earlier chat and its answer's text if it continues one."""
    own = [text_of(segment_tokens(nonce, segment)) for segment in request.prompt.segments]
    before = request.prompt.continues
    if before is not None and before in outcomes and before in chats:
        return (*chats[before], Message("assistant", outcomes[before].text), *alternating_messages(own))
    system = Message("system", text_of(nonce_tokens(nonce)) + own[0])
    return (system, *alternating_messages(own[1:]))


def alternating_messages(texts: list[str]) -> list[Message]:
    """Return messages of user and assistant alternately."""
    return [Message(("user", "assistant")[i % 2], text) for i, text in enumerate(texts)]
