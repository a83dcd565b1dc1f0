"""Counters of prompts with embedding rows count what they name and nothing else."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support.evidence import Shown, miscounted
from support.histories import history, outcome

from coldproof.adapters.protocol.embedding_rows import ZERO_ROW, row_id
from coldproof.harness.case.signature import signature
from coldproof.harness.features.rows.evidence import Rows
from coldproof.harness.history.records import Outcome
from coldproof.harness.judgement.checkers.cached_tokens import check_bounds
from coldproof.harness.judgement.reference_cache import at_least
from coldproof.harness.schema.verdict import FailureClass

LENGTH = 40  # two whole blocks of 16, and more
TOKENS = tuple(range(33, 33 + LENGTH))
TABLE = tuple(row_id(f"{place}") for place in range(LENGTH))


def mixed(
    number: int,
    *shown: int,
    tokens: tuple[int, ...] = TOKENS,
    rows: tuple[int, ...] = TABLE,
    length: int = LENGTH,
    **more: Any,
) -> Outcome:
    """Return a request with rows at the positions `shown`."""
    seen = tuple(rows[i] if i in shown else tokens[i] for i in range(length))
    hidden = tuple(tokens[i] if i in shown else rows[i] for i in range(length))
    return outcome(number, seen, hidden=hidden, **more)


def bare(number: int, *shown: int, tokens: tuple[int, ...] = (0,) * LENGTH) -> Outcome:
    """Return a request with rows of zeros at the positions `shown`, and nothing under them or the token ids."""
    seen = tuple(ZERO_ROW if i in shown else token for i, token in enumerate(tokens))
    return outcome(number, seen, hidden=(0,) * LENGTH)


def other_at(place: int) -> tuple[int, ...]:
    """Return the table of rows with another row at one position."""
    return (*TABLE[:place], row_id("other"), *TABLE[place + 1 :])


ZEROS, ANSWER = (0,) * LENGTH, tuple(range(70, 80))
LONG: dict[str, Any] = {"answer": ANSWER}


def turn(**more: Any) -> Outcome:
    """Return the next turn of request 0."""
    first = mixed(0, 20)
    seen = (*first.prompt, *ANSWER, 7)
    return outcome(1, seen, hidden=(*(first.hidden or ()), *ZEROS)[: len(seen)], **more)


SHOWS: list[Shown] = [
    (Rows.PROMPTS, history(mixed(0, 20)), [history(outcome(0, TOKENS)), history(mixed(0, 20, error="lost"))]),
    (
        Rows.HITS,
        history(mixed(0, 20), mixed(1, 20, cached_tokens=32)),
        [history(mixed(0, 20), mixed(1, 20, cached_tokens=16)), history(outcome(0, TOKENS, cached_tokens=32))],
    ),
    (
        Rows.OTHER_ROWS,
        history(mixed(0, 20), mixed(1, 20, rows=other_at(20))),
        [
            history(mixed(0, 20), mixed(1, 20)),
            history(mixed(0, 20), mixed(1, 20, rows=other_at(25))),  # under a token: the model does not see it
            history(mixed(0, 38), mixed(1, 38, rows=other_at(38))),  # in the part of a block at the end
            history(mixed(0, 20, length=32), mixed(1, 20, rows=other_at(20), length=32)),  # never looked up
            history(mixed(0, 20), mixed(1, 20, rows=other_at(20), salt="red")),
            history(mixed(0, 20), mixed(1, 21, rows=other_at(21))),
            history(mixed(0, 20), mixed(1, 20, rows=other_at(20), tokens=(*TOKENS[:30], 9, *TOKENS[31:]))),
        ],
    ),
    (
        Rows.OTHER_MASK,
        history(mixed(0, 20), mixed(1, 21)),
        [
            history(mixed(0, 20), mixed(1, 20)),
            history(mixed(0, 20), mixed(1, 20, 38)),
            history(mixed(0, 20), mixed(1, 21, rows=other_at(20))),
            history(mixed(0, 20), mixed(1, 21, salt="red")),
            history(mixed(0, 20), outcome(1, TOKENS)),
        ],
    ),
    (
        Rows.OTHER_MASK,
        history(bare(0, 20), bare(1, 21)),
        [history(bare(0, 20), bare(1, 20)), history(bare(0, 20), bare(1, 21, tokens=TOKENS))],
    ),
    (
        Rows.TURNS,
        history(mixed(0, 20, **LONG), turn()),
        [
            history(mixed(0, 20, **LONG), turn(salt="red")),
            history(mixed(0, 20, **LONG), turn(sent=0.1)),
            history(mixed(0, 20), mixed(1, 20)),
            history(outcome(0, TOKENS, ANSWER), outcome(1, (*TOKENS, *ANSWER, 7))),
        ],
    ),
]


def test_what_happened_is_counted_and_nothing_similar() -> None:
    """Each counter has the simplest history that it counts, and similar ones that it does not."""
    assert miscounted(SHOWS) == []


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        ((mixed(0, 20), mixed(1, 21)), "; embedding rows; other positions of the same rows"),
        (
            (mixed(0, 20, tokens=ZEROS), mixed(1, 21, tokens=ZEROS)),
            "; embedding rows; other positions of the same rows, token ids 0",
        ),
        ((mixed(0, 20), mixed(1, 20, rows=other_at(20))), "; embedding rows; other rows"),
        ((mixed(0, 20), mixed(1, 20)), "; embedding rows"),
        ((outcome(0, TOKENS), outcome(1, TOKENS)), ""),
    ],
)
def test_a_signature_says_in_what_the_prompts_differ(pair: tuple[Outcome, Outcome], words: str) -> None:
    """A waiver of one defect then does not cover another."""
    assert signature(history(*pair), FailureClass.CROSS_REQUEST, 1) == f"cross-request; no reload{words}"


def test_outcomes_without_rows_are_stored_without_them() -> None:
    """A stored history of token prompts has no field for rows."""
    assert b"hidden" not in msgspec.json.encode(outcome(0, TOKENS))
    one = mixed(0, 20)
    assert msgspec.json.decode(msgspec.json.encode(one), type=Outcome) == one


@pytest.mark.parametrize(
    ("earlier", "then", "least"),
    [
        (mixed(0, 20), mixed(1, 20), 32),
        (mixed(0, 20), mixed(1, 20, rows=other_at(17)), 16),  # another row under a token: an engine may key by it
        (mixed(0, 20), outcome(1, TOKENS), 0),  # a tensor of rows, and none
        (mixed(0, 20, **LONG), turn(), 48),  # the turn has to carry something at the positions of the answer
    ],
    ids=["the same", "another hidden row", "no rows", "next turn"],
)
def test_reuse_is_expected_as_far_as_requests_carry_the_same(earlier: Outcome, then: Outcome, least: int) -> None:
    """This includes the values that the model does not see."""
    assert at_least(history(earlier, then), then) == least


def test_a_hit_on_similar_rows_names_the_writer() -> None:
    """The count alone shows the hit, because the answer may be right by chance."""
    first, then = mixed(0, 20, tokens=ZEROS), mixed(1, 21, tokens=ZEROS, cached_tokens=32)
    (found,) = check_bounds(history(first, then))
    assert found.failure_class is FailureClass.ACCOUNTING
    assert "request 0 wrote such blocks for a prompt with other positions of the same rows" in found.sentence
