"""Symbolic prompts become tokens or messages: the nonce once, segments in order, and earlier turns as the engine
answered them.
"""

from __future__ import annotations

import pytest
from support.histories import ask, outcome

from coldproof.adapters.protocol.requests import Message
from coldproof.harness.history.prompts import messages_of, tokens_of
from coldproof.harness.history.records import Outcome
from coldproof.harness.workload.steps import Request, Segment
from coldproof.harness.workload.tokens import nonce_tokens, segment_tokens, text_of

FIRST = nonce_tokens("n")


def segment(name: str, length: int) -> tuple[int, ...]:
    """Return the tokens of a segment under the nonce."""
    return segment_tokens("n", Segment(name, length))


def words(name: str, length: int) -> str:
    """Return the text of a segment under the nonce."""
    return text_of(segment(name, length))


def chat(*segments: tuple[str, int], continues: int | None = None) -> Request:
    """Return a chat of these messages."""
    return ask(*segments, continues=continues, chat=True)


def test_a_prompt_is_the_nonce_and_its_segments() -> None:
    """The segments stand in order."""
    assert tokens_of(ask(("a", 5), ("b", 3)), "n", {}) == FIRST + segment("a", 5) + segment("b", 3)


def test_a_turn_continues_prompt_and_answer() -> None:
    """Every token of the answer is kept, and no second nonce is added."""
    earlier = outcome(0, (1, 2, 3), (7, 8, 9))
    assert tokens_of(ask(("turn", 4), continues=0), "n", {0: earlier}) == (1, 2, 3, 7, 8, 9, *segment("turn", 4))


@pytest.mark.parametrize(
    ("cut", "left"), [((2, None), (3, 7, 8, 9)), ((2, 4), (3, 7)), ((0, 2), (1, 2)), ((6, None), ())]
)
def test_a_cut_history_is_a_part_of_prompt_and_answer(cut: tuple[int, int | None], left: tuple[int, ...]) -> None:
    """It has no nonce, unless the part begins with it."""
    earlier = outcome(0, (1, 2, 3), (7, 8, 9))
    request = ask(("turn", 4), continues=0, cut=cut)
    assert tokens_of(request, "n", {0: earlier}) == (*left, *segment("turn", 4))


def test_a_turn_whose_answer_never_came_starts_from_nothing() -> None:
    """The run continues with keys of its own."""
    assert tokens_of(ask(("turn", 4), continues=3), "n", {}) == FIRST + segment("turn", 4)


def test_a_chat_is_system_user_and_assistant_in_turn() -> None:
    """The nonce stands at the start of the system message, so that no two examples share the beginning of a chat."""
    segments = (("prelude", 9), ("question", 5), ("answer", 4), ("next", 3))
    assert messages_of(chat(*segments), "n", {}, {}) == (
        Message("system", text_of(FIRST) + words("prelude", 9)),
        Message("user", words("question", 5)),
        Message("assistant", words("answer", 4)),
        Message("user", words("next", 3)),
    )


def test_a_prelude_alone_is_a_chat() -> None:
    """Such a chat has one message."""
    assert messages_of(chat(("prelude", 9)), "n", {}, {}) == (Message("system", text_of(FIRST) + words("prelude", 9)),)


def answered(text: str) -> dict[int, Outcome]:
    """Return outcomes in which request 0 was answered with this text."""
    return {0: outcome(0, (1, 2, 3), text=text)}


def test_the_next_turn_repeats_the_answer_and_adds_a_user_message() -> None:
    """The engine alone decides how its template renders the messages."""
    before = (Message("system", "s"), Message("user", "u"))
    then = messages_of(chat(("turn", 4), ("hint", 2), continues=0), "n", {0: before}, answered("said"))
    assert then == (
        *before,
        Message("assistant", "said"),
        Message("user", words("turn", 4)),
        Message("assistant", words("hint", 2)),
    )


def test_two_branches_of_a_turn_share_all_but_their_own_words() -> None:
    """They also share the answer."""
    before = (Message("system", "s"), Message("user", "u"))
    one, other = (
        messages_of(chat((name, 4), continues=0), "n", {0: before}, answered("said")) for name in ("left", "right")
    )
    assert one[:-1] == other[:-1]
    assert one[-1] != other[-1]


def test_a_chat_that_continues_no_chat_starts_from_nothing() -> None:
    """This happens if the answer never came, or if the earlier request was no chat."""
    alone = messages_of(chat(("turn", 4)), "n", {}, {})
    assert messages_of(chat(("turn", 4), continues=0), "n", {}, answered("said")) == alone
    assert messages_of(chat(("turn", 4), continues=0), "n", {0: (Message("system", "s"),)}, {}) == alone


def test_another_nonce_is_another_chat() -> None:
    """They differ from the first character on."""
    one, other = (messages_of(chat(("prelude", 9), ("q", 5)), nonce, {}, {}) for nonce in ("n", "m"))
    assert one[0].content[0:4] != other[0].content[0:4]
    assert one[1] != other[1]
