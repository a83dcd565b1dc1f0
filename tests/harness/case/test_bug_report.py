"""The bug report in cases/ID.md has what a maintainer needs, nothing private, and no unescaped engine text."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support import report_samples
from support.histories import ask, burst, put

from coldproof.harness.case.bug_report import anonymous, bug_report, rate
from coldproof.harness.schema.case import Case, ControlRow, Diagnosis, Reproduction, Strength
from coldproof.harness.workload.steps import Workload
from coldproof.reports.run_report.run_report import render_html

DIAGNOSIS = Diagnosis(
    conclusion="It needs prefix caching: without it it never occurred.",
    mechanism="a cache key that identifies adapters by name",
    controls=[
        ControlRow(
            name="prefix caching off",
            removes="prefix caching",
            tells=Strength.NEEDED,
            tries=3,
            observed=[5, 6],
            cold=[5, 6],
            cached_tokens=0,
        ),
        ControlRow(name="no second tier", removes="the second tier", not_run="no time was left"),
    ],
)


def case(**changes: Any) -> Case:
    """Return a case of two requests around a reload, the second of which is wrong."""
    workload = Workload((put("A"), burst(ask(adapter="tenant")), put("B"), burst(ask(adapter="tenant"))))
    facts: dict[str, Any] = {
        "workload": msgspec.to_builtins(workload),
        "requests": [report_samples.request(0), report_samples.request(1, correct=False)],
        "failing_request": 1,
        "engine_config": {"command": "python -m vllm.server --model /x/models/1 --port 4711", "environment": "A=1"},
        "diagnosis": DIAGNOSIS,
        "counters": {"hit_tokens": 64.0, "preemptions": 0.0},
        "provenance": ["Request 1 read wrong KV at positions 0-31."],
    }
    return report_samples.case(**{**facts, **changes})


def report(**changes: Any) -> str:
    """Return the bug report of the case."""
    return bug_report(case(**changes), statement="Answers as cold.", environment={"torch": "2.13.0+cpu"})


def test_everything_that_a_maintainer_needs_is_there() -> None:
    """It has the command, requests, tokens, controls, evidence, the environment, and both ways to reproduce it."""
    text = report()
    for part in (
        "A=1 python -m vllm.server",
        "--port 8000",
        "1. load",
        "* observed: `[",
        "* expected (cold start): `[",
        "first difference at token 2",
        "| prefix caching off | fails in 0 of 3 | 0 | `[5, 6]` as cold | required |",
        "| no second tier | not run: no time was left |",
        "The controls below point at a cache key that identifies adapters by name.",
        "It needs prefix caching",
        "prompt tokens hit: 64",
        "read wrong KV at positions 0-31",
        "| torch | 2.13.0+cpu |",
        "coldproof replay",
        "exit code 1 while the bug exists",
        "Answers as cold.",
    ):
        assert part in text, part


def test_the_title_has_the_failure_and_what_happened() -> None:
    """It has the words of the signature, in one line."""
    title = report(signature="stale state; in-place reload; same path").splitlines()[0]
    assert title.endswith("stale state \\(in-place reload, same path\\)")
    assert report(signature="lost reuse").splitlines()[0].endswith("lost reuse")


@pytest.mark.parametrize(("agrees", "said"), [(True, True), (False, False), (None, False)])
def test_the_answer_of_a_fresh_engine_is_reported_if_it_agrees(agrees: bool | None, said: bool) -> None:
    """The sentence is left out if the fresh engine disagrees or was not queried."""
    seen = Reproduction(while_shrinking_failed=1, while_shrinking_tries=1, fresh_oracle_agrees=agrees)
    assert ("A fresh engine that gets this prompt first gives the cold answer" in report(reproduction=seen)) is said


def test_what_is_not_known_is_not_claimed() -> None:
    """Missing counters and provenance are named, controls that were not run are left out, and no table is empty."""
    text = report(diagnosis=None, counters={}, provenance=[], log_tail="")
    assert "ontrols" not in text
    assert "The engine publishes no such evidence." in text
    assert "point at" not in text
    assert "End of the engine's log" not in text


HOSTILE = "</details>\n```\n# owned <img src=x onerror=alert(1)> | cell"


@pytest.mark.parametrize("field", ["sentence", "log_tail"])
def test_engine_text_does_not_break_out(field: str) -> None:
    """It is escaped in prose, and it cannot close its fence."""
    text = report(**{field: HOSTILE})
    outside = [line for i, part in enumerate(text.split("````")) if i % 2 == 0 for line in part.splitlines()]
    assert not any(line.startswith("# owned") for line in outside)
    assert not any("<img" in line and "\\<img" not in line for line in outside)


def test_no_private_name_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The home folder, a user name in another path, a password in a URL and the working directory are left out."""
    monkeypatch.setattr(Path, "home", lambda: Path("/home/jane"))
    monkeypatch.setattr(getpass, "getuser", lambda: "jane")
    said = anonymous(f"/home/jane/.cache /data/jane/x http://me:secret@host {Path.cwd()}/log janeway")
    assert said == "~/.cache /data/user/x http://***@host ./log janeway"


@pytest.mark.parametrize(
    ("failed", "tries", "says"),
    [
        (3, 3, "3 of 3"),
        (0, 3, "0 of 3"),
        (1, 3, "1 of 3 (95 %: 6 to 79 %)"),
        (5, 10, "5 of 10 (95 %: 24 to 76 %)"),
        (9, 10, "9 of 10 (95 %: 60 to 98 %)"),
    ],
)
def test_a_rate_between_none_and_all_has_an_interval(failed: int, tries: int, says: str) -> None:
    """It is Wilson's interval."""
    assert rate(failed, tries) == says


def test_a_case_that_failed_once_says_so() -> None:
    """One run has no rate."""
    once = Reproduction(while_shrinking_failed=1, while_shrinking_tries=1)
    assert "It was observed once." in report(reproduction=once)
    assert "It failed in 3 of 3 runs on fresh engines and 0 of 3 runs with prefix caching off." in report()


def test_the_same_case_gives_the_same_bytes() -> None:
    assert report() == report()


def test_the_page_shows_the_controls_and_links_the_report() -> None:
    """The page has the same table with escaped text. A case without controls has no table."""
    hostile = msgspec.structs.replace(DIAGNOSIS, conclusion="<script>alert(1)</script>")
    page = render_html(report_samples.results(case(diagnosis=hostile)))
    assert "prefix caching off" in page
    assert ">required<" in page
    assert "not run: no time was left" in page
    assert "&lt;script&gt;alert(1)" in page
    assert f"cases/{case().id}.md" in page
    assert "<h4>Controls</h4>" not in render_html(report_samples.results(case(diagnosis=None)))
