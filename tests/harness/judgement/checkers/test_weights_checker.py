"""Wrong answers over an update, pauses that do not follow their mode, and updates without an effect are detected."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support.histories import outcome, tokens
from support.weights import NEW, history_with_updates, pause, reset, update, with_tokens

from coldproof.adapters.protocol.requests import Stage
from coldproof.adapters.protocol.weights import PauseMode
from coldproof.harness.features.weights.checks import check_weights, continuation_questions
from coldproof.harness.history.records import History, Outcome
from coldproof.harness.judgement.finding import EXACT
from coldproof.harness.judgement.oracle import Answer, Answers
from coldproof.harness.schema.verdict import FailureClass

OLD_ANSWER, NEW_REST = (7, 8, 9, 10), (20, 21)
TIMES = (0.5, 1.0, 2.5, 2.6)


def crossing(*answer: int, clear: bool = True) -> History:
    """Return the history of a request with an update after its second token."""
    one = outcome(0, range(40), answer, finished=3.0)
    one = msgspec.structs.replace(with_tokens(one, *TIMES), max_tokens=4)
    one = msgspec.structs.replace(
        one, tokens=tuple(msgspec.structs.replace(t, id=i) for t, i in zip(one.tokens, answer, strict=True))
    )
    resets = (reset(1.0),) if clear else ()
    return history_with_updates(one, updates=(update(1.0),), pauses=(pause(1.0, 1.0),), resets=resets)


def cold(history: History) -> Answers:
    """Return the cold continuations: 9 and 10 with the old weights, 20 and 21 with the new ones."""
    answers: Answers = {}
    for question in continuation_questions(history):
        ids = OLD_ANSWER if question.weights is None else NEW_REST
        answers[question] = Answer(tokens(*ids))
    return answers


@pytest.mark.parametrize(
    ("answer", "clear", "classes"),
    [
        ((7, 8, 20, 21), True, []),
        ((7, 8, 9, 10), True, [FailureClass.STALE_STATE]),
        ((7, 8, 20, 10), True, [FailureClass.CORRUPT]),
        ((7, 99, 20, 21), True, [FailureClass.CORRUPT]),
        ((7, 8, 9, 10), False, []),  # nothing is promised about the rest
        ((7, 8, 66, 67), False, []),
        ((7, 99, 20, 21), False, [FailureClass.CORRUPT]),  # the tokens before the update must be right
    ],
)
def test_the_rest_of_an_answer_is_of_the_new_weights(
    answer: tuple[int, ...], clear: bool, classes: list[FailureClass]
) -> None:
    """It is that after the KV was discarded. The beginning is always that of the old weights."""
    history = crossing(*answer, clear=clear)
    assert [f.failure_class for f in check_weights(history, cold(history), EXACT)] == classes


def pause_findings(mode: PauseMode, *times: float, **more: Any) -> list[str]:
    """Return the sentences of the findings about a request with tokens at these times and a pause from 1 to 5."""
    one = with_tokens(outcome(0, range(40), (7, 8, 9), **{"finished": max(times), **more}), *times)
    history = history_with_updates(one, pauses=(pause(1.0, 5.0, mode),))
    return [f.sentence for f in check_weights(history, {}, EXACT)]


def test_a_pause_does_what_its_mode_says() -> None:
    """A request that was not running at its beginning may get tokens later."""
    assert pause_findings(PauseMode.KEEP, 0.5, 6.0) == []
    assert pause_findings(PauseMode.WAIT, 0.5, 1.0) == []
    assert pause_findings(PauseMode.ABORT, 0.5, 1.0, aborted=Stage.DECODE) == []
    assert pause_findings(PauseMode.ABORT, 6.0, 7.0) == []
    assert "did not end request 0" in pause_findings(PauseMode.ABORT, 0.5, 6.0)[0]
    assert "did not wait for request 0" in pause_findings(PauseMode.WAIT, 0.5, 6.0)[0]
    assert "got tokens during the pause" in pause_findings(PauseMode.KEEP, 0.5, 3.0, 6.0)[0]


@pytest.mark.parametrize(
    ("checksums", "wrong"),
    [(("x", "start"), 0), (("start", "start"), 1), (("x", "x"), 1), ((None, None), 0), (("x", "y"), 1)],
)
def test_an_update_changes_the_checksum(checksums: tuple[str | None, str | None], wrong: int) -> None:
    """It changes to the new weights' and back. Without checksums, only answers can show an update."""
    there, back = update(1.0, checksum=checksums[0]), update(2.0, checksum=checksums[1], weights=None, version="start")
    history = history_with_updates(updates=(there, back), start_checksum="start")
    found = check_weights(history, {}, EXACT)
    assert [f.failure_class for f in found] == [FailureClass.STALE_STATE] * wrong


def test_a_history_without_updates_and_pauses_gives_no_finding() -> None:
    """A history of any other requirement has neither."""
    one: Outcome = outcome(0, range(40))
    assert check_weights(history_with_updates(one), {}, EXACT) == []
    assert list(continuation_questions(history_with_updates(one))) == []
    assert NEW not in {i.weights for i in one.identities}
