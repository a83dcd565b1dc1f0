"""A cause without controls is named by whose KV was read, and one fault in a key is one line."""

from __future__ import annotations

from typing import Any

import pytest
from support import report_samples as samples
from support.histories import history, outcome

from coldproof.adapters.protocol.provenance import Writer, WrongRead
from coldproof.harness.history.provenance import describe_wrong_reads
from coldproof.harness.schema.case import Case, Diagnosis
from coldproof.harness.schema.findings import Severity
from coldproof.harness.schema.verdict import FailureClass
from coldproof.reports.run_report.run_report import render_html
from coldproof.reports.views.causes import cause_views
from coldproof.reports.views.mix_ups import ANOTHER, EARLIER, TITLES, mix_up

OF_ADAPTER, OF_SALT, OF_WEIGHTS = TITLES.values()
SALTED = "base model, salt 'red', weights 'start'"


def read(id: str = "one", *, writer: str, reader: str, counted: bool = False, **changes: Any) -> Case:
    """Return a case whose last request read what another one wrote. `counted`: only counts show it."""
    by = {"shared_with": 0} if counted else {"written_by": 0, "shared_with": 1}
    rows = [samples.request(0, identity=writer), samples.request(1), samples.request(3, identity=reader, **by)]
    return samples.case(id, requests=rows, failing_request=3, signature=f"stale state; {id}", **changes)


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize(
    ("writer", "reader", "title"),
    [
        ("adapter A", "adapter B", OF_ADAPTER),
        ("adapter A, salt 'red'", SALTED, OF_ADAPTER),
        ("base model", SALTED, OF_SALT),
        ("base model, salt 'red', weights 'B'", SALTED, OF_WEIGHTS),
        (SALTED, SALTED, ""),
        ("adapter A or adapter B", "base model", ""),  # a reload overlapped it
    ],
)
def test_the_title_says_whose_kv_was_read(writer: str, reader: str, title: str, counted: bool) -> None:
    """The gravest difference counts: an adapter's is another tenant's as well."""
    assert mix_up(read(writer=writer, reader=reader, counted=counted)) == title


def test_an_endpoint_is_named() -> None:
    """A salt that one route drops is not the fault of the key."""
    case = read(writer="base model", reader=SALTED)
    case = samples.case(
        requests=case.requests, failing_request=3, signature="stale state; at /v1/messages under a salt"
    )
    assert mix_up(case) == f"{OF_SALT}, at /v1/messages under a salt"


@pytest.mark.parametrize(
    ("writer", "title"), [("cmpl-older.0.", EARLIER), ("cmpl-n.1.", ANOTHER), ("cmpl-n.0.", ""), (None, "")]
)
def test_kv_for_other_tokens_is_told_by_its_writer(writer: str | None, title: str) -> None:
    """The sentence is that of the history. What a request wrote itself is of another kind."""
    by = None if writer is None else Writer(request=writer, position=0, adapter=None, content=None)
    wrong = WrongRead(
        request="cmpl-n.0.", step=0, layer=0, group=0, column=0, block=7, first=0, last=31, found=1, writer=by
    )
    sent = (outcome(0, range(32)), outcome(1, range(50, 82)))
    said = describe_wrong_reads(history(*sent, wrong_reads=(wrong,)), 0)
    for kind in (FailureClass.CORRUPT, FailureClass.CROSS_REQUEST):
        assert mix_up(samples.case(failure_class=kind, provenance=said)) == title
    assert mix_up(samples.case(failure_class=FailureClass.CORRUPT, provenance=[])) == ""
    assert mix_up(samples.case(failure_class=FailureClass.CRASH, provenance=said)) == ""


def test_one_fault_of_the_key_is_one_cause() -> None:
    """Its signatures tell reloads, resets and turns apart. What the controls of one case point at holds for all."""
    cases = [read(name, writer="adapter A", reader="adapter B", requirement=name) for name in ("LORA-1", "LORA-2")]
    other = read("SALT-1", writer="base model", reader=SALTED, requirement="SALT-1")
    views = cause_views(samples.results(*cases, other))
    assert sorted((view.title, len(view.cases)) for view in views if view.cases) == [(OF_ADAPTER, 2), (OF_SALT, 1)]
    pointed = Diagnosis(conclusion="", mechanism="a cache key without the adapter", controls=[])
    told = read("LORA-3", writer="adapter A", reader="adapter B", diagnosis=pointed)
    more = [read(f"SALT-{i}", writer="base model", reader=SALTED, requirement=f"PRESS-{i}") for i in range(5)]
    (view, salted) = (view for view in cause_views(samples.results(*cases, other, *more, told)) if view.cases)
    assert (view.title, len(view.cases), salted.title) == ("A cache key without the adapter", 3, OF_SALT)


def test_what_controls_tell_apart_stays_apart() -> None:
    """Then what has no controls may be either."""
    said = ("a cache key without the adapter", "a reload that leaves old blocks")
    told = [
        read(f"LORA-{i}", writer="adapter A", reader="adapter B",
             diagnosis=Diagnosis(conclusion="", mechanism=mechanism, controls=[]))
        for i, mechanism in enumerate(said)
    ]  # fmt: skip
    open_one = read("LORA-9", writer="adapter A", reader="adapter B")
    assert len([view for view in cause_views(samples.results(*told, open_one)) if view.cases]) == 3


def test_what_controls_say_of_kv_for_other_tokens_holds_for_their_case_alone() -> None:
    """Blocks come into wrong hands in many ways."""
    said = ["Request 3 read wrong KV at position 0 (block 0): it contains KV that request 0 wrote for the base model."]
    corrupt = {"failure_class": FailureClass.CORRUPT, "provenance": said}
    pointed = Diagnosis(conclusion="", mechanism="a preemption", controls=[])
    one, other = samples.case("one", diagnosis=pointed, **corrupt), samples.case("other", **corrupt)
    assert {view.title for view in cause_views(samples.results(one, other)) if view.cases} == {"A preemption", ANOTHER}


def test_another_requests_kv_in_an_answer_is_foreign_data() -> None:
    """Whatever the class says: a wrong answer alone would be of nobody. What its case showed stands below the title."""
    said = ["Request 3 read wrong KV at position 0 (block 0): it contains KV that request 0 wrote for the base model."]
    made = samples.results(samples.case(failure_class=FailureClass.CORRUPT, provenance=said, sentence="It differs."))
    (view,) = (view for view in cause_views(made) if view.cases)
    assert (view.severity, view.title, view.example) == (Severity.FOREIGN_DATA, ANOTHER, "It differs.")
    assert "It differs." in render_html(made).partition("Causes, worst first")[2].partition("</table>")[0]


def test_kv_of_another_position_may_be_of_the_same_prompt() -> None:
    """Such as the state after fewer tokens of a prefix that both requests have (vllm PR#54076)."""
    said = [
        "Request 1 read wrong KV at position 63 (block 1): it contains KV that request 0 wrote for its position 47 for "
        "the base model."
    ]
    made = samples.results(samples.case(failure_class=FailureClass.CORRUPT, provenance=said))
    (view,) = (view for view in cause_views(made) if view.cases)
    assert (view.severity, view.title) == (Severity.WRONG_ANSWER, ANOTHER)
