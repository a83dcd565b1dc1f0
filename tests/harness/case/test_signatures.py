"""A signature names what else happened in a case, so that a waiver for one fault does not hide another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.case_samples import SLOTS
from support.event_streams import events, history_with_events, stored
from support.histories import ask, burst, history, outcome, play, put, record, shape, tokens

from coldproof.adapters.protocol.metrics import Metrics
from coldproof.adapters.protocol.provenance import NO_BLOCK, WrongRead
from coldproof.adapters.protocol.requests import Abort, ResponseOptions
from coldproof.adapters.protocol.shape import GroupShape
from coldproof.harness.case.circumstances import Failure, all_circumstances
from coldproof.harness.case.rows.requests import matching_cold_answers, request_rows
from coldproof.harness.case.signature import needs_all_of, signature
from coldproof.harness.history.records import History, Identity, ResetRecord
from coldproof.harness.judgement.finding import Rule
from coldproof.harness.judgement.judge import judge
from coldproof.harness.judgement.oracle import Answer, question
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.session.selftest.scripted_engine import ClosedFormOracle, ScriptedEngine
from coldproof.harness.workload.steps import Burst, Idle, Meanwhile, Request, Reset, Route, Step, Workload

PROMPT = range(100, 140)


def history_of(*steps: Step, **changes: Any) -> History:
    """Return the history of a run of these steps, with only what a signature depends on."""
    return history(workload=Workload(steps), **{"steps": tuple(record(i) for i in range(len(steps))), **changes})


def history_of_request(**changes: Any) -> History:
    """Return the history of a run of one request with these fields."""
    return history_of(burst(ask(**changes)))


PREEMPTED = (record(0, after=Metrics(preemptions=2.0)),)
SHIFTS = shape(max_model_tokens=64, shifts_context=True)
RESET = (ResetRecord(began=0.1, ended=0.2, success=False),)
FEATURES = {
    "preempted": history_of(burst(ask()), steps=PREEMPTED),
    "reset": history_of(burst(ask()), resets=RESET),
    "context shift": history(outcome(0, PROMPT, max_tokens=25), shape=SHIFTS),
    "aborted": history_of_request(abort=Abort(after_tokens=2)),
    "chat": history_of_request(chat=True),
    "priorities": history_of_request(priority=-5),
    "another adapter in a session": history_of(
        *(burst(ask(session="a", streaming=True, adapter=adapter)) for adapter in (None, "tenant"))
    ),
    "several answers": history_of_request(options=ResponseOptions(answers=2)),
    "prompt logprobs": history_of_request(options=ResponseOptions(prompt_logprobs=True)),
    "stop string": history_of_request(options=ResponseOptions(stop=("a",))),
    "structured output": history_of_request(options=ResponseOptions(pattern="[ab]")),
}


@pytest.mark.parametrize("feature", FEATURES)
def test_each_feature_that_happened_is_named(feature: str) -> None:
    """No other feature is named. One request of many is enough."""
    failure = Failure(history=FEATURES[feature], failure_class=FailureClass.CORRUPT)
    assert all_circumstances(failure) == [feature]
    assert signature(FEATURES[feature], FailureClass.CORRUPT) == f"corrupt; no reload; {feature}"


@pytest.mark.parametrize(
    "plain",
    [
        history_of_request(),
        history_of_request(salt="red", offset_ms=50, max_tokens=90, adapter="tenant"),
        history_of(Idle(50), burst(ask())),
        history_of(burst(ask()), steps=(record(0, after=Metrics(preemptions=0.0)),)),
        history_of(burst(ask()), steps=(record(0, after=Metrics()),)),
        history_of(burst(ask()), steps=()),
        history_of_request(options=ResponseOptions(logprobs=True)),
        history(outcome(0, PROMPT, max_tokens=24), shape=SHIFTS),
    ],
)
def test_ordinary_requests_are_not_named(plain: History) -> None:
    """A signature has no figures of one run and no more words than it needs."""
    assert signature(plain, FailureClass.CORRUPT) == "corrupt; no reload"


def test_several_features_come_in_one_order() -> None:
    """The order does not depend on the steps, so the same fault has the same signature."""
    steps: list[Step] = [
        burst(ask(chat=True)),
        burst(ask(abort=Abort(after_ms=5), priority=1)),
        burst(ask(options=ResponseOptions(stop=("a",)))),
    ]
    words = "corrupt; no reload; reset; aborted; chat; priorities; stop string"
    assert {signature(history_of(*order, resets=RESET), FailureClass.CORRUPT) for order in (steps, steps[::-1])} == {
        words
    }


def test_features_follow_the_words_about_a_reload() -> None:
    """Route, path and moment of a reload are where waivers expect them."""
    reload = put("B", route=Route.IN_PLACE)
    words = "stale state; in-place reload; other path; between requests; chat"
    assert signature(history_of(put("A"), burst(ask(chat=True)), reload), FailureClass.STALE_STATE) == words


def test_a_reset_under_load_is_no_reload_under_traffic() -> None:
    """The adapter was changed between requests, though a reset overlapped one."""
    reset = Burst(requests=(ask(),), meanwhile=Meanwhile(change=Reset(), after_tokens=1))
    change = put("B", route=Route.IN_PLACE)
    reload = Burst(requests=(ask(),), meanwhile=Meanwhile(change=change, after_tokens=1))
    moments = [
        signature(history_of(put("A"), *steps), FailureClass.STALE_STATE).split("; ")[3]
        for steps in ((reset, change), (reload,), (change,))
    ]
    assert moments == ["between requests", "under traffic", "between requests"]


def aborted(answer: tuple[int, ...]) -> str:
    """Return whose answer this answer to an aborted request begins, if the base model answers 1 2 3 4."""
    one = outcome(0, PROMPT, answer, max_tokens=4, aborted="while decoding")
    cold = {question(one, one.identities[0]): Answer(tokens(1, 2, 3, 4))}
    return matching_cold_answers(one, cold, history(one))


def test_a_truncated_answer_belongs_to_the_cold_answer_it_begins() -> None:
    """An answer without a token belongs to none."""
    assert [aborted(answer) for answer in ((1, 2), (1, 9), ())] == ["base model", "no known cold answer", ""]


@pytest.mark.parametrize(
    "request_",
    [
        ask(abort=Abort(after_tokens=2)),
        ask(("prelude", 9), ("question", 5), chat=True),
        ask(options=ResponseOptions(prompt_logprobs=True)),
    ],
)
def test_rows_of_right_answers_of_every_kind_say_so(request_: Request, tmp_path: Path) -> None:
    """A row says that the answer is right and whose answer it is."""
    seen = play(ScriptedEngine(), tmp_path, burst(request_))
    (row,) = request_rows(judge(seen, ClosedFormOracle(), Rule(exact=True), exclusive=True))
    assert (row.correct, row.answers_as, row.error) == (True, "base model", "")
    assert msgspec.json.encode(row)


def test_wrong_hashes_of_adapters_only_are_named() -> None:
    """A waiver for them then does not hide the base model's. They are named only if they are what failed."""
    adapters = stored(lora="tenant-n", hashes=("0" * 15 + "1", "0" * 15 + "2"))
    base = stored(hashes=("0" * 15 + "3", "0" * 15 + "4"))
    for wrong, more in (((adapters,), "; only adapters' hashes"), ((adapters, base), ""), ((base,), "")):
        given = history_with_events(events((0.4, wrong)), outcome(0, PROMPT))
        assert signature(given, FailureClass.API) == f"api; no reload{more}"
        assert signature(given, FailureClass.CORRUPT) == "corrupt; no reload"


@pytest.mark.parametrize(
    ("column", "block", "first", "groups", "where"),
    [
        (0, 9, 0, True, "wrong from a block's start"),
        (0, 9, 1, True, "wrong within a block"),
        (31, 9, 1984, True, "wrong from a block's start"),
        (31, 9, 1985, True, "wrong within a block"),
        (31, NO_BLOCK, 1985, True, "read no block"),
        (0, 9, 1, False, "wrong within a block"),
        (31, 9, 1985, False, ""),
    ],
)
def test_where_wrong_kv_begins_is_named(column: int, block: int, first: int, groups: bool, where: str) -> None:
    """Another request's block is wrong from its start, and a block that was copied in part is wrong within.

    This is named only for the request that failed, and only if the block size of the group is known.
    """
    read = WrongRead(**SLOTS, column=column, block=block, first=first, last=2031)
    engine = shape(uniform=False, groups=(GroupShape(8), GroupShape(64)) if groups else ())
    seen = history(outcome(0, PROMPT), outcome(1, PROMPT), wrong_reads=(read,), shape=engine)
    more = f"; {where}" if where else ""
    assert signature(seen, FailureClass.CORRUPT, 1) == f"corrupt; no reload{more}"
    for other in (signature(seen, FailureClass.CORRUPT, 0), signature(seen, FailureClass.CORRUPT)):
        assert other == "corrupt; no reload"
    assert signature(seen, FailureClass.LOST_REUSE, 1) == "lost reuse; no reload"


def test_a_failure_of_a_request_that_a_change_overlaps_has_its_own_signature() -> None:
    """The change causes a mixture of two versions. What comes after it has another cause."""
    both = (Identity("digest-a", None), Identity("digest-b", None))
    inside, after = outcome(0, PROMPT, adapter="digest-a", identities=both), outcome(1, PROMPT, adapter="digest-b")
    seen = history(inside, after)
    words = "not the cache; no reload"
    assert signature(seen, FailureClass.NOT_THE_CACHE, 0) == f"{words}; overlaps the change"
    assert signature(seen, FailureClass.NOT_THE_CACHE, 1) == words


TRAFFIC = "in-place reload; other path; under traffic"


@pytest.mark.parametrize(
    ("sign", "other", "expected"),
    [
        (
            "corrupt; in-place reload; same path; between requests",
            "stale state; in-place reload; same path; between requests",
            True,
        ),
        (
            "stale state; in-place reload; same path; under traffic",
            "stale state; in-place reload; same path; between requests",
            True,
        ),
        ("corrupt; no reload", "stale state; in-place reload; same path; between requests", False),
        (
            "corrupt; unload, then load; same path; between requests",
            "corrupt; in-place reload; same path; between requests",
            False,
        ),
        (
            "corrupt; in-place reload and unload, then load; same path; between requests",
            "corrupt; in-place reload; same path; between requests",
            True,
        ),
        ("corrupt; no reload; preempted", "corrupt; no reload", False),
        ("accounting; no reload; reset; preempted", "accounting; no reload; reset", False),
        ("corrupt; no reload; reset", "accounting; no reload; reset", False),
    ],
)
def test_a_wrong_answer_may_need_all_that_another_needs(sign: str, other: str, expected: bool) -> None:
    """What needs less has another cause, and so may other failures that need more. No circumstances say nothing."""
    assert needs_all_of(sign, other) is expected
