"""The rows of a case have times, the parts of each prompt, the writers of what was read, and the contents of names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.case_samples import SLOTS
from support.histories import ask, burst, history, outcome, play, put, record

from coldproof.adapters.protocol.metrics import Metrics
from coldproof.adapters.protocol.provenance import WrongRead
from coldproof.adapters.protocol.requests import Stage, Token
from coldproof.harness.case.rows.changes import change_rows, queue_rows
from coldproof.harness.case.rows.prompts import locate_pieces
from coldproof.harness.case.rows.requests import request_rows, token_rows
from coldproof.harness.history.records import Identity, Outcome, QueueSample
from coldproof.harness.judgement.finding import Finding, Rule
from coldproof.harness.judgement.judge import Judgement, judge
from coldproof.harness.judgement.oracle import Answer, question
from coldproof.harness.judgement.requirement import Requirement
from coldproof.harness.schema.case import RequestRow, SegmentRow
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.session.selftest.scripted_engine import ClosedFormOracle, InjectedBug, ScriptedEngine
from coldproof.harness.workload.steps import Burst, Meanwhile, Prompt, Reset, Route, Segment, Step, Workload
from coldproof.harness.workload.tokens import nonce_tokens


def judged(engine: ScriptedEngine, folder: Path, *steps: Step) -> Judgement:
    """Return the judgement of these steps on a scripted engine, with the closed-form oracle."""
    return judge(play(engine, folder, *steps), ClosedFormOracle(), Rule(exact=True), exclusive=True)


def row_of(one: Outcome, **changes: Any) -> RequestRow:
    """Return the row of a request in a history that has no other request."""
    (row,) = request_rows(judge(history(one, **changes), ClosedFormOracle(), Rule(exact=True), exclusive=True))
    return row


# Times


TIMED = tuple(Token(id=7 + i, at=at) for i, at in enumerate((0.25, 0.5, 1.75)))


def test_a_row_says_when_the_first_and_the_first_wrong_token_came() -> None:
    """Times are counted from the start of the workload, like all times."""
    row = row_of(outcome(0, range(32, 60), sent=2.0, finished=4.0, tokens=TIMED, max_tokens=3))
    assert row.first_token == 2.25
    assert row.correct is False
    assert row.wrong_token == 0
    assert row.wrong_token_at == 2.25


def test_a_right_answer_has_no_wrong_token(tmp_path: Path) -> None:
    """A request without an answer has no first token."""
    (row,) = request_rows(judged(ScriptedEngine(), tmp_path, burst(ask())))
    assert (row.correct, row.wrong_token, row.wrong_token_at) == (True, None, None)
    lost = row_of(outcome(0, range(32, 60), tokens=(), error="gone"))
    assert (lost.first_token, lost.correct) == (None, None)


def overlapped(version: int | None) -> RequestRow:
    """Return the row of a request that a change from A to B overlapped, under a requirement that leaves it out.

    The request answers as the version of that number, or as neither.
    """
    both = (Identity("digest-a", None), Identity("digest-b", None))
    one = outcome(0, range(32, 60), adapter="digest-b", identities=both)
    if version is not None:
        one = msgspec.structs.replace(one, tokens=ClosedFormOracle().ask(question(one, both[version])).tokens)
    of_quiet_requests = Requirement("R-1", "title", (), (), overlapped_too=False, hashes_too=True)
    judged_ = judge(history(one), ClosedFormOracle(), Rule(exact=True), exclusive=True)
    (row,) = request_rows(judged_.limited(of_quiet_requests))
    return row


def test_a_request_that_a_change_overlapped_names_the_matching_version() -> None:
    """An answer of neither version, which is another requirement's matter here, was not compared.

    It is not called correct, and the row names no version.
    """
    rows = [overlapped(version) for version in (0, 1, None)]
    assert [(row.correct, row.answers_as) for row in rows] == [(True, "adapter A"), (True, "adapter B"), (None, "")]
    assert all(row.overlaps_change for row in rows)


def test_a_preemption_lasts_until_the_next_token() -> None:
    """It lasts to the end of the request if no token follows."""
    row = row_of(outcome(0, range(32, 60), sent=2.0, finished=4.5, tokens=TIMED, preempted_at=(0.6, 2.0)))
    assert row.preempted_at == [2.6, 4.0]
    assert row.resumed_at == [3.75, 4.5]


def test_an_abort_says_how_far_the_request_had_come() -> None:
    """The row has the engine's own name of the stage."""
    assert row_of(outcome(0, range(32, 60), aborted=Stage.PREFILL)).aborted == "in prefill"
    assert row_of(outcome(0, range(32, 60))).aborted == ""


# Writers


def test_the_writer_of_a_stale_prefix_is_named(tmp_path: Path) -> None:
    """It is named for the request that read it wrongly, and for no other."""
    steps = (
        put("A", path="p"),
        burst(ask(adapter="tenant")),
        put("B", path="p", route=Route.IN_PLACE),
        burst(ask(adapter="tenant")),
    )
    first, second = request_rows(judged(ScriptedEngine(InjectedBug.NAME_ONLY_KEY), tmp_path, *steps))
    assert (first.written_by, second.written_by) == (None, 0)
    assert (first.shared_with, second.shared_with, second.shared_tokens) == (None, 0, 44)
    assert second.adapter == "tenant"


def test_a_correct_hit_has_no_writer(tmp_path: Path) -> None:
    """A correct hit is what a cache is for, so the row names no writer."""
    rows = request_rows(judged(ScriptedEngine(), tmp_path, burst(ask()), burst(ask())))
    assert rows[1].cached_tokens == 40
    assert [row.written_by for row in rows] == [None, None]


def test_the_writer_before_a_reset_is_named(tmp_path: Path) -> None:
    """The answer is right and the hit is not."""
    rows = request_rows(judged(ScriptedEngine(InjectedBug.RESET_LIES), tmp_path, burst(ask()), Reset(), burst(ask())))
    assert rows[1].correct
    assert rows[1].written_by == 0


@pytest.mark.parametrize(("writer", "named"), [("n.0.", 0), ("n.1.", None), ("m.7.", None)])
def test_digests_name_the_writer_and_the_positions(writer: str, named: int | None) -> None:
    """The writer is named only if it is another request of this run."""
    read = {**SLOTS, "column": 0, "block": 3, "first": 4, "last": 15}
    wrote = {"request": writer, "position": 4, "adapter": None, "content": None}
    seen = history(
        outcome(0, range(32, 60)),
        outcome(1, range(32, 60)),
        wrong_reads=(msgspec.convert({**read, "writer": wrote}, WrongRead),),
    )
    rows = request_rows(judge(seen, ClosedFormOracle(), Rule(exact=True), exclusive=True))
    assert (rows[0].wrong_kv, rows[1].wrong_kv) == ([], [4, 15])
    assert rows[1].written_by == named


# Parts of a prompt


def test_a_prompt_is_its_nonce_and_its_segments(tmp_path: Path) -> None:
    """The segments have their edits, and their lengths add up to the length of the prompt."""
    edited = Prompt((Segment("stem", 24, changed=3), Segment("tail", 9, swapped=2)))
    request = msgspec.structs.replace(ask(), prompt=edited)
    (row,) = request_rows(judged(ScriptedEngine(), tmp_path, burst(request)))
    assert row.segments == [
        SegmentRow(name="nonce", tokens=4),
        SegmentRow(name="stem", tokens=24, changed=3),
        SegmentRow(name="tail", tokens=9, swapped=2),
    ]
    assert sum(segment.tokens for segment in row.segments) == row.prompt_tokens


def test_a_request_that_continues_an_earlier_one_inherits_its_segments(tmp_path: Path) -> None:
    """It inherits the answer too. The names stay, so that the same tokens have the same name."""
    steps = (burst(ask(("stem", 16), max_tokens=5)), burst(ask(("more", 7), continues=0)))
    _, row = request_rows(judged(ScriptedEngine(), tmp_path, *steps))
    assert [(one.name, one.tokens, one.inherited) for one in row.segments] == [
        ("nonce", 4, 0),
        ("stem", 16, 0),
        ("answer of r0", 5, 0),
        ("more", 7, None),
    ]


def test_a_cut_history_has_parts_of_the_segments_that_it_keeps(tmp_path: Path) -> None:
    """A part without its start has its own name, because its tokens are not the segment's first."""
    steps = (
        burst(ask(("stem", 16), max_tokens=5)),
        burst(ask(("more", 7), continues=0, cut=(10, 23))),
        burst(ask(("more", 7), continues=0, cut=(4, 9))),
        burst(ask(("more", 7), continues=0, cut=(0, -1))),
    )
    _, *rows = request_rows(judged(ScriptedEngine(), tmp_path, *steps))
    assert [[(one.name, one.tokens, one.inherited) for one in row.segments] for row in rows] == [
        [("stem[6:]", 10, 0), ("answer of r0", 3, 0), ("more", 7, None)],
        [("stem", 5, 0), ("more", 7, None)],
        [("nonce", 4, 0), ("stem", 16, 0), ("answer of r0", 4, 0), ("more", 7, None)],
    ]


def test_the_tokens_of_a_chat_template_are_named(tmp_path: Path) -> None:
    """The template of the scripted engine ends each message with one token."""
    chat = ask(("prelude", 9), ("question", 5), chat=True)
    (row,) = request_rows(judged(ScriptedEngine(), tmp_path, burst(chat)))
    assert [(one.name, one.tokens) for one in row.segments] == [
        ("nonce", 4),
        ("prelude", 9),
        ("template", 1),
        ("question", 5),
        ("template", 1),
    ]


def test_a_chat_without_known_parts_is_one_segment() -> None:
    """The tokenizer made other tokens of the text, and no picture is better than a wrong one."""
    seen = history(outcome(0, tuple(range(900, 930))), workload=Workload((burst(ask(chat=True)),)))
    (row,) = request_rows(judge(seen, ClosedFormOracle(), Rule(exact=True), exclusive=True))
    assert row.segments == [SegmentRow(name="chat", tokens=30)]


@pytest.mark.parametrize(
    ("piece", "prompt", "places"),
    [
        ((5,), (1, 5, 2), [("template", 1), ("x", 1), ("template", 1)]),
        ((5,), (1, 5, 2, 5), None),
        ((5,), (5, 2, 5), [("x", 1), ("template", 2)]),
        ((5, 6, 7, 8), (1, 5, 6, 7, 8, 5, 6, 7, 8), [("template", 1), ("x", 4), ("template", 4)]),
        ((5, 6), (1, 2), None),
        ((), (1, 2), [("template", 2)]),
    ],
)
def test_a_short_piece_is_placed_only_if_its_place_is_certain(
    piece: tuple[int, ...], prompt: tuple[int, ...], places: list[tuple[str, int]] | None
) -> None:
    """A single token may be the template's own."""
    rows = locate_pieces([(SegmentRow(name="x", tokens=len(piece)), piece)], prompt)
    assert (None if rows is None else [(row.name, row.tokens) for row in rows]) == places


def test_a_prompt_of_one_piece_has_no_other_segment() -> None:
    """No token is left over."""
    nonce = nonce_tokens("n")
    rows = locate_pieces([(SegmentRow(name="nonce", tokens=4), nonce)], nonce)
    assert rows == [SegmentRow(name="nonce", tokens=4)]


# Changes and samples


def test_every_change_and_reset_that_was_reached_has_a_row(tmp_path: Path) -> None:
    """Each row has its own time. That of a change during a burst lies within the burst's time."""
    steps = (
        put("A"),
        Burst(
            requests=(ask(adapter="tenant"),),
            meanwhile=Meanwhile(change=put("B", route=Route.IN_PLACE), after_tokens=2),
        ),
        Reset(),
    )
    seen = play(ScriptedEngine(), tmp_path, *steps)
    rows = change_rows(seen)
    assert [(row.step, row.kind, row.name, row.content, row.refused) for row in rows] == [
        (0, "load", "tenant", "A", False),
        (1, "in-place reload", "tenant", "B", False),
        (2, "reset", "", "", False),
    ]
    during = seen.steps[1]
    assert during.started <= rows[1].began <= rows[1].ended <= during.finished
    assert (rows[1].began, rows[1].ended) == (during.change_began, during.change_ended)
    assert [row.step for row in change_rows(msgspec.structs.replace(seen, steps=seen.steps[:1]))] == [0]


def test_a_change_that_the_engine_refused_is_marked(tmp_path: Path) -> None:
    """It is marked for a change that failed and for a reset that did not report success."""
    seen = play(ScriptedEngine(), tmp_path, put("A"), Reset())
    failed = msgspec.structs.replace(seen.steps[0], error="HTTP 400")
    unsure = tuple(msgspec.structs.replace(reset, success=False) for reset in seen.resets)
    rows = change_rows(msgspec.structs.replace(seen, steps=(failed, seen.steps[1]), resets=unsure))
    assert [row.refused for row in rows] == [True, True]


def test_samples_of_queue_and_pool_are_in_order_of_time() -> None:
    """There are samples at the start, within a burst and after it. A sample without a value is left out."""
    sample = QueueSample(at=0.2, running=2.0, waiting=1.0, pool_usage=0.5)
    steps = (record(0, before=Metrics(pool_usage=0), after=Metrics(pool_usage=0.25), queue=(sample,)),)
    rows = queue_rows(history(outcome(0, range(40)), steps=steps))
    assert [(row.at, row.pool_usage) for row in rows] == [(0.0, 0.0), (0.2, 0.5), (0.5, 0.25)]
    assert (rows[1].running, rows[1].waiting) == (2.0, 1.0)
    assert queue_rows(history(outcome(0, range(40)))) == []
    assert queue_rows(history(outcome(0, range(40)), steps=())) == []


def test_a_tokens_own_margin_is_kept_if_it_was_requested() -> None:
    """The logprob margin that the engine returned is kept beside the oracle's."""
    one = outcome(0, range(40), tokens=(Token(id=7, at=0.1, gap=0.5), Token(id=8, at=0.2)))
    answers = {question(one, one.identities[0]): Answer((Token(id=7, at=0.0, gap=2.0), Token(id=9, at=0.0)))}
    finding = Finding(checker="tokens", failure_class=FailureClass.CORRUPT, sentence="", request=0, position=1)
    rows = token_rows(one, answers, finding)
    assert [(row.expected_gap, row.observed_gap) for row in rows] == [(2.0, 0.5), (None, None)]
