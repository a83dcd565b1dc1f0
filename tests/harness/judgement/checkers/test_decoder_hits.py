"""The number of tokens that a decoder fetches from a prefiller shows what it had in its own cache."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support.histories import BLOCK, history, outcome, record, shape

from coldproof.adapters.protocol.metrics import Metrics
from coldproof.adapters.protocol.requests import ResponseOptions
from coldproof.adapters.protocol.sides import Side
from coldproof.harness.features.sides.checks import check_decoder_hits
from coldproof.harness.history.records import History, Outcome, ResetRecord, SideRestart
from coldproof.harness.schema.verdict import FailureClass

PROMPT = tuple(range(100, 100 + 2 * BLOCK + 8))  # two whole blocks, and more
WHOLE, REST = len(PROMPT), 8  # tokens to fetch without a hit, and with both blocks
PAIR = shape(publishes_answers=False)
COUNTED, LOST = [FailureClass.ACCOUNTING], [FailureClass.LOST_REUSE]


def history_of(*outcomes: Outcome, fetched: tuple[float | None, ...], **changes: Any) -> History:
    """Return a history of requests one after the other.

    `fetched` has the decoder's total of fetched tokens after each.
    """
    counts: list[float | None] = [0.0, *fetched]
    steps = [
        record(i, before=Metrics(external_hit_tokens=counts[i]), after=Metrics(external_hit_tokens=counts[i + 1]))
        for i in range(len(outcomes))
    ]
    return history(*outcomes, steps=tuple(steps), **{"shape": PAIR, **changes})


def classes_of(made: History) -> list[FailureClass]:
    """Return the classes of the findings."""
    return [one.failure_class for one in check_decoder_hits(made, exclusive=True)]


@pytest.mark.parametrize(
    ("salts", "fetched", "classes"),
    [
        ((None, None), (WHOLE, WHOLE + REST), []),
        ((None, None), (WHOLE, 2 * WHOLE), LOST),
        (("red", "red"), (WHOLE, WHOLE + REST), []),
        (("red", "blue"), (WHOLE, 2 * WHOLE), []),
        (("red", "blue"), (WHOLE, WHOLE + REST), COUNTED),
        ((None, "blue"), (WHOLE, WHOLE), COUNTED),
        ((None, None), (0, WHOLE), COUNTED),  # no request had computed the first one
        ((None, None), (WHOLE, None), []),
    ],
)
def test_a_prompt_is_fetched_except_for_what_the_decoder_has(
    salts: tuple[str | None, str | None], fetched: tuple[float | None, ...], classes: list[FailureClass]
) -> None:
    """Only blocks of the same identity count."""
    sent = [outcome(i, PROMPT, salt=salt) for i, salt in enumerate(salts)]
    assert classes_of(history_of(*sent, fetched=fetched)) == classes


def test_the_decoder_has_the_answers() -> None:
    """The prefiller has none, so the next turn is fetched without the whole blocks of the turn before it."""
    first = outcome(0, PROMPT, tuple(range(200, 230)))
    turn = outcome(1, (*PROMPT, *range(200, 230), 7, 8))
    known = (WHOLE + 29) // BLOCK * BLOCK
    assert classes_of(history_of(first, turn, fetched=(WHOLE, WHOLE + len(turn.prompt) - known))) == []
    assert classes_of(history_of(first, turn, fetched=(WHOLE, WHOLE + len(turn.prompt) - 2 * BLOCK))) == LOST


def test_after_a_reset_all_of_a_prompt_is_fetched() -> None:
    """What the decoder kept is right, but must not be there."""
    reset = ResetRecord(began=0.7, ended=0.8, success=True)
    sent = (outcome(0, PROMPT), outcome(1, PROMPT))
    assert classes_of(history_of(*sent, fetched=(WHOLE, 2 * WHOLE), resets=(reset,))) == []
    assert classes_of(history_of(*sent, fetched=(WHOLE, WHOLE + REST), resets=(reset,))) == COUNTED


@pytest.mark.parametrize(("answer", "classes"), [((7, 8), COUNTED), ((7,), [])])
def test_a_counter_may_be_late_for_an_answer_of_one_token(answer: tuple[int, ...], classes: list[FailureClass]) -> None:
    """The counter is published with the first token, and the answer may end with it."""
    assert classes_of(history_of(outcome(0, PROMPT, answer), fetched=(0,))) == classes


def test_a_late_counter_may_catch_up() -> None:
    """Sums are compared for this reason."""
    sent = (outcome(0, PROMPT, (7,)), outcome(1, range(300, 340)))
    assert classes_of(history_of(*sent, fetched=(0, WHOLE + 40))) == []


@pytest.mark.parametrize(
    "unknown",
    [
        {"shape": shape()},
        {"side_restarts": (SideRestart(0.6, 0.7, Side.DECODE),)},
        {"steps": ()},
    ],
)
def test_a_counter_without_meaning_gives_no_finding(unknown: dict[str, Any]) -> None:
    """One engine, a side that was killed with its counters, and a history without steps give no finding."""
    wrong = history_of(outcome(0, PROMPT), fetched=(0,))
    assert classes_of(wrong) == COUNTED
    assert classes_of(msgspec.structs.replace(wrong, **unknown)) == []


def test_other_clients_fetch_too() -> None:
    """Their tokens are in the counter, so nothing can be concluded."""
    assert check_decoder_hits(history_of(outcome(0, PROMPT), fetched=(0,)), exclusive=False) == []


@pytest.mark.parametrize("more", [{"preemptions": 1.0}, {"failed_loads": 1.0}])
def test_nothing_is_known_after_a_preemption_or_a_failed_fetch(more: dict[str, float]) -> None:
    """The request is then looked up again."""
    lost = record(0, before=Metrics(external_hit_tokens=0.0), after=Metrics(external_hit_tokens=0.0, **more))
    if "preemptions" in more:
        lost = msgspec.structs.replace(lost, before=msgspec.structs.replace(lost.before, preemptions=0.0))
    assert classes_of(history(outcome(0, PROMPT), steps=(lost,), shape=PAIR)) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"options": ResponseOptions(answers=2)},
        {"options": ResponseOptions(prompt_logprobs=True)},
        {"error": "a side does not answer", "tokens": ()},
    ],
)
def test_what_is_computed_on_both_sides_or_failed_is_not_fetched(changes: dict[str, Any]) -> None:
    """Nothing has to be fetched for such a request."""
    assert classes_of(history_of(outcome(0, PROMPT, **changes), fetched=(0,))) == []


def test_a_full_pool_gives_no_finding() -> None:
    """The pool may have evicted what the decoder had."""
    sent = (outcome(0, PROMPT), outcome(1, PROMPT))
    small = shape(publishes_answers=False, pool_blocks=4)
    assert classes_of(history_of(*sent, fetched=(WHOLE, 2 * WHOLE), shape=small)) == []


def test_the_sentence_has_both_numbers() -> None:
    """The sentence names the step, too."""
    (one,) = check_decoder_hits(history_of(outcome(0, PROMPT), fetched=(0,)), exclusive=True)
    assert one.sentence == (
        "Up to step 0, the decoder fetched 0 tokens of its prompts, but at least 40 cannot have been in its own cache."
    )


def test_a_decoder_that_may_compute_what_it_misses_need_not_fetch() -> None:
    """The files of the tier may not be written yet when the decoder looks the prompt up."""
    two = [outcome(i, PROMPT) for i in range(2)]
    stored = msgspec.structs.replace(PAIR, second_tier=True)
    assert classes_of(history_of(*two, fetched=(0, 0))) == COUNTED
    assert classes_of(history_of(*two, fetched=(0, 0), shape=stored)) == []
