"""A signature names what else happened in a case, so that a waiver for one fault does not hide another."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support import report_samples
from support.case_samples import SLOTS
from support.event_streams import events, history_with_events, stored
from support.histories import ask, burst, history, outcome, play, put, record, shape, tokens
from support.paths import ROOT

from coldproof.adapters.protocol.metrics import Metrics
from coldproof.adapters.protocol.provenance import NO_BLOCK, WrongRead
from coldproof.adapters.protocol.requests import Abort, ResponseOptions
from coldproof.adapters.protocol.shape import GroupShape
from coldproof.harness.case.circumstances import Failure, all_circumstances
from coldproof.harness.case.known_issues import Waivers, read_known_issues
from coldproof.harness.case.rows.requests import matching_cold_answers, request_rows
from coldproof.harness.case.signature import signature
from coldproof.harness.history.records import History, Identity, ResetRecord
from coldproof.harness.judgement.finding import Rule
from coldproof.harness.judgement.judge import judge
from coldproof.harness.judgement.oracle import Answer, question
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.session.selftest.scripted_engine import ClosedFormOracle, ScriptedEngine
from coldproof.harness.workload.steps import Burst, Idle, Meanwhile, Request, Reset, Route, Step, Workload

PROMPT = range(100, 140)


def ran(*steps: Step, **changes: Any) -> History:
    """What is left of a run of these steps where only they matter."""
    return history(workload=Workload(steps), **{"steps": tuple(record(i) for i in range(len(steps))), **changes})


def asked(**changes: Any) -> History:
    """One request that asks for this."""
    return ran(burst(ask(**changes)))


PREEMPTED = (record(0, after=Metrics(preemptions=2.0)),)
SHIFTS = shape(max_model_tokens=64, shifts_context=True)
RESET = (ResetRecord(began=0.1, ended=0.2, success=False),)
FEATURES = {
    "preempted": ran(burst(ask()), steps=PREEMPTED),
    "reset": ran(burst(ask()), resets=RESET),
    "context shift": history(outcome(0, PROMPT, max_tokens=25), shape=SHIFTS),
    "aborted": asked(abort=Abort(after_tokens=2)),
    "chat": asked(chat=True),
    "priorities": asked(priority=-5),
    "another adapter in a session": ran(
        *(burst(ask(session="a", streaming=True, adapter=adapter)) for adapter in (None, "tenant"))
    ),
    "several answers": asked(surface=ResponseOptions(answers=2)),
    "prompt logprobs": asked(surface=ResponseOptions(prompt_logprobs=True)),
    "stop string": asked(surface=ResponseOptions(stop=("a",))),
    "structured output": asked(surface=ResponseOptions(pattern="[ab]")),
}


@pytest.mark.parametrize("feature", FEATURES)
def test_each_feature_is_named_where_it_happened(feature: str) -> None:
    """And no other is; one request of many is enough."""
    failure = Failure(history=FEATURES[feature], failure_class=FailureClass.CORRUPT)
    assert all_circumstances(failure) == [feature]
    assert signature(FEATURES[feature], FailureClass.CORRUPT) == f"corrupt; no reload; {feature}"


@pytest.mark.parametrize(
    "plain",
    [
        asked(),
        asked(salt="red", offset_ms=50, max_tokens=90, adapter="tenant"),
        ran(Idle(50), burst(ask())),
        ran(burst(ask()), steps=(record(0, after=Metrics(preemptions=0.0)),)),
        ran(burst(ask()), steps=(record(0, after=Metrics()),)),
        ran(burst(ask()), steps=()),
        asked(surface=ResponseOptions(logprobs=True)),
        history(outcome(0, PROMPT, max_tokens=24), shape=SHIFTS),
    ],
)
def test_what_is_nothing_special_is_not_named(plain: History) -> None:
    """A signature has no figures of one run in it, and no more words than it needs."""
    assert signature(plain, FailureClass.CORRUPT) == "corrupt; no reload"


def test_several_features_come_in_one_order() -> None:
    """Whatever the order of the steps: the same fault has the same signature."""
    steps: list[Step] = [
        burst(ask(chat=True)),
        burst(ask(abort=Abort(after_ms=5), priority=1)),
        burst(ask(surface=ResponseOptions(stop=("a",)))),
    ]
    words = "corrupt; no reload; reset; aborted; chat; priorities; stop string"
    assert {signature(ran(*order, resets=RESET), FailureClass.CORRUPT) for order in (steps, steps[::-1])} == {words}


def test_features_follow_what_is_said_of_a_reload() -> None:
    """Route, path and moment stand where waivers look for them."""
    reload = put("B", route=Route.IN_PLACE)
    words = "stale state; in-place reload; other path; between requests; chat"
    assert signature(ran(put("A"), burst(ask(chat=True)), reload), FailureClass.STALE_STATE) == words


def test_a_reset_under_load_is_no_reload_under_traffic() -> None:
    """The adapter was changed between requests, whatever else was done while some ran."""
    reset = Burst(requests=(ask(),), meanwhile=Meanwhile(change=Reset(), after_tokens=1))
    change = put("B", route=Route.IN_PLACE)
    reload = Burst(requests=(ask(),), meanwhile=Meanwhile(change=change, after_tokens=1))
    moments = [
        signature(ran(put("A"), *steps), FailureClass.STALE_STATE).split("; ")[3]
        for steps in ((reset, change), (reload,), (change,))
    ]
    assert moments == ["between requests", "under traffic", "between requests"]


def aborted(answer: tuple[int, ...]) -> str:
    """Whose answer a request that was hung up on is said to begin, where the base model answers 1 2 3 4."""
    one = outcome(0, PROMPT, answer, max_tokens=4, aborted="while decoding")
    cold = {question(one, one.identities[0]): Answer(tokens(1, 2, 3, 4))}
    return matching_cold_answers(one, cold, history(one))


def test_an_answer_that_was_cut_off_is_whose_it_begins() -> None:
    """One without a token is nobody's."""
    assert [aborted(answer) for answer in ((1, 2), (1, 9), ())] == ["base model", "no known cold answer", ""]


@pytest.mark.parametrize(
    "request_",
    [
        ask(abort=Abort(after_tokens=2)),
        ask(("prelude", 9), ("question", 5), chat=True),
        ask(surface=ResponseOptions(prompt_logprobs=True)),
    ],
)
def test_rows_of_right_answers_of_every_kind_say_so(request_: Request, tmp_path: Path) -> None:
    """Right, and as whom."""
    seen = play(ScriptedEngine(), tmp_path, burst(request_))
    (row,) = request_rows(judge(seen, ClosedFormOracle(), Rule(exact=True), exclusive=True))
    assert (row.correct, row.answers_as, row.error) == (True, "base model", "")
    assert msgspec.json.encode(row)


def test_hashes_that_only_adapters_have_wrong_are_named() -> None:
    """So that a waiver for them does not hide the base model's; and only where they are what failed."""
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
    """A block that is somebody else's is wrong from its start; one that was copied in part is wrong within. Only of the
    request that failed, and only where a group's blocks are known by their size."""
    read = WrongRead(**SLOTS, column=column, block=block, first=first, last=2031)
    engine = shape(uniform=False, groups=(GroupShape(8), GroupShape(64)) if groups else ())
    seen = history(outcome(0, PROMPT), outcome(1, PROMPT), wrong_reads=(read,), shape=engine)
    more = f"; {where}" if where else ""
    assert signature(seen, FailureClass.CORRUPT, 1) == f"corrupt; no reload{more}"
    for other in (signature(seen, FailureClass.CORRUPT, 0), signature(seen, FailureClass.CORRUPT)):
        assert other == "corrupt; no reload"
    assert signature(seen, FailureClass.LOST_REUSE, 1) == "lost reuse; no reload"


def test_a_failure_of_whoever_a_change_overlapped_is_told_from_others() -> None:
    """A mixture of two versions is the change's; what comes after it is another matter."""
    both = (Identity("digest-a", None), Identity("digest-b", None))
    inside, after = outcome(0, PROMPT, adapter="digest-a", identities=both), outcome(1, PROMPT, adapter="digest-b")
    seen = history(inside, after)
    words = "not the cache; no reload"
    assert signature(seen, FailureClass.NOT_THE_CACHE, 0) == f"{words}; overlaps the change"
    assert signature(seen, FailureClass.NOT_THE_CACHE, 1) == words


TRAFFIC = "in-place reload; other path; under traffic"


@pytest.mark.parametrize(
    ("requirement", "cell", "sign", "waived"),
    [
        ("LORA-5", "default", f"stale state; {TRAFFIC}", True),
        ("LORA-5", "groups-window", f"corrupt; {TRAFFIC}; wrong from a block's start", True),
        ("LORA-5", "default", f"lost reuse; {TRAFFIC}", False),
        ("LORA-5", "default", f"not the cache; {TRAFFIC}", False),
        ("LORA-6", "default", f"not the cache; {TRAFFIC}; overlaps the change", True),
        ("LORA-6", "attached", f"corrupt; {TRAFFIC}; overlaps the change", True),
        ("LORA-6", "default", f"stale state; {TRAFFIC}", False),
        ("LORA-6", "default", f"corrupt; {TRAFFIC}", False),
        ("LORA-6", "default", f"hang; {TRAFFIC}", False),
        ("LORA-6", "default", f"crash; {TRAFFIC}; overlaps the change", False),
        ("GROUP-1", "groups-state-blocks", "corrupt; no reload; wrong within a block", True),
        ("GROUP-1", "groups-state-blocks", "corrupt; no reload", False),
        ("GROUP-1", "groups-state-blocks", "corrupt; no reload; wrong from a block's start", False),
        ("GROUP-1", "groups-state-blocks", "corrupt; no reload; read no block", False),
        ("GROUP-1", "groups-state", "corrupt; no reload; wrong within a block", False),
    ],
)
def test_what_vllm_is_known_to_do_is_waived_and_no_more(requirement: str, cell: str, sign: str, waived: bool) -> None:
    """Another fault under the same requirement fails the run."""
    known = read_known_issues(ROOT / "adapters" / "vllm" / "known_issues.toml")
    waivers = Waivers(known, version="0.32.0", today=datetime.date(2026, 12, 1), worker="fingerprint")
    case = report_samples.case(requirement=requirement, cell=cell, signature=sign)
    assert (waivers.waive(case) is not None) is waived
