"""A reproducer plays chats, aborts, resets, priorities and response options; exit code 1 means only the bug.

It runs against the fake server, which is correct, wrong on hits in one way, or lacks what the scenario needs.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support import report_samples
from support.fake_reply import ServerBehaviour
from support.fake_server import serving
from support.histories import ask, burst, put

from coldproof.adapters.protocol.endpoints import IMPOSSIBLE_PRIORITY, Endpoint
from coldproof.adapters.protocol.requests import Abort, ResponseOptions
from coldproof.adapters.protocol.resets import ResetScope
from coldproof.adapters.protocol.restarts import EngineChange
from coldproof.adapters.protocol.sides import Side
from coldproof.harness.case.reproducer.script import reproducer
from coldproof.harness.case.reproducer.steps import extra_fields, scenario
from coldproof.harness.schema.case import Case
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.workload.halves import twice
from coldproof.harness.workload.steps import (
    Burst,
    Idle,
    Meanwhile,
    Prompt,
    Request,
    Reset,
    Restart,
    RestartSide,
    Route,
    Segment,
    Step,
    Workload,
)

NO_BUG, BUG, UNTESTED = 0, 1, 2
TURN = ask(("turn", 20), continues=0, chat=True)
CHAT = ask(("prelude", 40), ("question", 9), chat=True)
CUT = ask(("turn", 20), continues=0, cut=(20, 42), max_tokens=4)
SHORT, LONG = ask(("stem", 40), max_tokens=4), ask(("stem", 40), max_tokens=20)


def changed(request: Request, **changes: Any) -> Request:
    """Return the same request with other fields."""
    return msgspec.structs.replace(request, **changes)


SWAPPED = changed(SHORT, prompt=Prompt((Segment("stem", 40, swapped=20),)), salt="red+tenant")
ENDPOINTS = [burst(changed(CHAT, endpoint=endpoint, salt="red")) for endpoint in Endpoint]
ODD = [
    burst(changed(CHAT, endpoint=endpoint, priority=IMPOSSIBLE_PRIORITY))
    for endpoint in (Endpoint.CHAT, Endpoint.MESSAGES)
]
LETTERS = tuple("abcdefghijklmnopqrstuvwxyz")  # nearly every answer of the fake server has one of them
STORIES: dict[str, tuple[Step, ...]] = {
    "a chat again": (burst(CHAT), burst(CHAT)),
    "a chat's next turn": (burst(CHAT), burst(TURN), burst(TURN)),
    "through messages": (burst(CHAT), burst(changed(CHAT, endpoint=Endpoint.MESSAGES))),
    "through token ids": (burst(CHAT), burst(changed(CHAT, endpoint=Endpoint.GENERATE))),
    "through responses": (burst(CHAT), burst(changed(CHAT, endpoint=Endpoint.RESPONSES))),
    "a chat through completions": (burst(CHAT), burst(changed(CHAT, endpoint=Endpoint.COMPLETIONS))),
    "a turn through every endpoint": (*ENDPOINTS, burst(changed(TURN, endpoint=Endpoint.MESSAGES, salt="red"))),
    "a cut history again": (burst(SHORT), burst(CUT), burst(CUT)),
    "after an abort": (burst(changed(LONG, abort=Abort(after_tokens=2))), burst(LONG)),
    "an abort on a hit": (burst(LONG), burst(changed(LONG, abort=Abort(after_tokens=2)))),
    # The fake server needs some milliseconds to read what its client no longer waits for.
    "after a silence": (burst(changed(LONG, abort=Abort(after_ms=1))), Idle(300), burst(LONG)),
    "side by side, late and urgent": (burst(SHORT, changed(SHORT, priority=-5, offset_ms=60)),),
    "on two ranks": (burst(changed(SHORT, rank=0)), burst(changed(SHORT, rank=1)), burst(changed(SHORT, rank=0))),
    "after silence and reset": (burst(SHORT), Idle(5), Reset(), burst(SHORT), burst(SHORT)),
    "several answers": (burst(SHORT), burst(changed(SHORT, options=ResponseOptions(answers=3)))),
    "swapped tokens, and a salt of two parts": (burst(SHORT), burst(SWAPPED), burst(SWAPPED)),
    "a stop string": (burst(LONG), burst(changed(LONG, max_tokens=150, options=ResponseOptions(stop=LETTERS)))),
    "prompt logprobs": (
        burst(SHORT),
        burst(changed(SHORT, options=ResponseOptions(prompt_logprobs=True, logprobs=True))),
    ),
    "structured output": (burst(SHORT), burst(changed(SHORT, options=ResponseOptions(pattern="[ab]")))),
}


def case_of(*steps: Step, **changes: Any) -> Case:
    """Return a case whose last request was answered wrongly, unless `changes` says otherwise."""
    workload = Workload(steps)
    facts: dict[str, Any] = {
        "id": "CASE-1",
        "workload": msgspec.to_builtins(workload),
        "recipes": {},
        "engine_config": {"url": "http://somewhere"},
        "failure_class": FailureClass.CORRUPT,
        "failing_request": sum(1 for _ in workload.requests()) - 1,
        "first_difference": 0,
    }
    return report_samples.case(**{**facts, **changes})


def with_count_bounds(
    case: Case, *, at_least: int, at_most: int, failure: FailureClass = FailureClass.ACCOUNTING
) -> Case:
    """Return the same case about a cached-token count that is out of its bounds."""
    row = report_samples.request(case.failing_request or 0, cached_at_least=at_least, cached_at_most=at_most)
    return msgspec.structs.replace(case, requests=[row], first_difference=None, failure_class=failure)


RunScript = Callable[..., tuple[int, str]]


@pytest.fixture
def run_script(tmp_path: Path) -> RunScript:
    """Return a function that runs a case's script against a fake server and returns its exit code and output."""

    def run(case: Case, **behaviour: Any) -> tuple[int, str]:
        script = tmp_path / "case.py"
        script.write_text(reproducer(case))
        with serving(ServerBehaviour(**behaviour)) as fake:
            done = subprocess.run(
                [sys.executable, str(script), fake.url],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                check=False,
            )
        output = done.stdout + done.stderr
        assert "Traceback" not in output, output
        return done.returncode, output

    return run


@pytest.mark.parametrize("story", STORIES)
def test_a_correct_server_has_no_bug(story: str, run_script: RunScript) -> None:
    """Correct answers on hits are no bug, in each of five attempts."""
    code, output = run_script(case_of(*STORIES[story]))
    assert code == NO_BUG, output
    assert output.count("  answer ") == 5
    assert output.endswith("correct\n")


@pytest.mark.parametrize("story", STORIES)
def test_a_wrong_answer_on_a_hit_is_the_bug(story: str, run_script: RunScript) -> None:
    """The first attempt already shows it."""
    code, output = run_script(case_of(*STORIES[story]), corrupt="tokens")
    assert code == BUG, output
    assert output.count("  answer ") == 1
    assert output.endswith("WRONG\n")


@pytest.mark.parametrize(
    ("story", "part", "failure"),
    [
        ("several answers", "others", FailureClass.CORRUPT),
        ("a stop string", "end", FailureClass.API),
        ("prompt logprobs", "scores", FailureClass.API),
    ],
)
def test_a_failure_other_than_wrong_tokens_is_the_bug_too(
    story: str, part: str, failure: FailureClass, run_script: RunScript
) -> None:
    """The tokens and the counts are right, so a script that compared only those would report that the bug is fixed."""
    about = {"first_difference": None, "failure_class": failure}
    assert run_script(case_of(*STORIES[story], **about), corrupt=part)[0] == BUG
    assert run_script(case_of(*STORIES[story], **about))[0] == NO_BUG


@pytest.mark.parametrize(
    ("behaviour", "code"),
    [
        ({"drops": (("/v1/messages", "priority"),)}, BUG),
        ({}, NO_BUG),
        ({"drops": (("/v1/messages", "priority"),), "ignores": ("priority",)}, NO_BUG),
    ],
    ids=["at one route", "nowhere", "at every route"],
)
def test_a_field_that_one_route_ignores_is_the_bug(behaviour: dict[str, Any], code: int, run_script: RunScript) -> None:
    """The answer itself is right. It is wrong that the route answers what another route refuses."""
    case = case_of(*ODD, failure_class=FailureClass.API, first_difference=None)
    got, output = run_script(case, **behaviour)
    assert got == code, output


def test_only_a_case_that_names_a_route_has_code_for_it() -> None:
    """Other scripts do not get longer."""
    assert "at_endpoint" in reproducer(case_of(*ENDPOINTS))
    assert "at_endpoint" not in reproducer(case_of(burst(CHAT)))
    assert "ignores_what_others_refuse" not in reproducer(case_of(*ENDPOINTS))


AGAIN = (burst(LONG), burst(LONG))
# The fake server scores its tokens -0.5 each, 1.5 better than the next, and a prompt's tokens between -0.3 and -1.3.
BAND = report_samples.band(score_nats=1.0, margin_nats=1.8, flips=0.5, error_rate=0.01)


def noisy(failure: FailureClass = FailureClass.CORRUPT, **limits: float) -> Case:
    """Return a case of a nondeterministic engine, with this tolerance."""
    return case_of(*AGAIN, failure_class=failure, noise_nats=1.8, band=msgspec.structs.replace(BAND, **limits))


@pytest.mark.parametrize(
    ("case", "behaviour", "code"),
    [
        (noisy(), {}, NO_BUG),
        (noisy(), {"behind": 0.2}, NO_BUG),
        (noisy(), {"behind": 0.4}, BUG),
        (noisy(score_nats=0.1), {}, BUG),
        (noisy(margin_nats=1.6), {"behind": 0.2}, BUG),
        (noisy(FailureClass.STALE_STATE), {"behind": 0.2}, BUG),
        (noisy(FailureClass.STALE_STATE), {}, NO_BUG),
        (noisy(FailureClass.STALE_STATE, error_rate=1e-9), {"behind": 0.2}, NO_BUG),
    ],
    ids=[
        "equal scores",
        "lower scores",
        "much lower scores",
        "a narrow score tolerance",
        "a narrow margin tolerance",
        "stale state",
        "stale state, within the noise",
        "stale state, too few tokens",
    ],
)
def test_on_a_noisy_engine_another_token_is_the_bug_unless_noise_explains_it(
    case: Case, behaviour: dict[str, Any], code: int, run_script: RunScript
) -> None:
    """Both sides' scores of the same tokens decide, because correct answers of this engine diverge too."""
    got, output = run_script(case, corrupt="tokens", **behaviour)
    assert got == code, output
    assert "largest margin" in output


@pytest.mark.parametrize(
    ("noise", "behaviour", "code"),
    [(2.0, {}, NO_BUG), (1.0, {}, BUG), (1.0, {"ignores": ("logprobs",)}, UNTESTED)],
    ids=["a small margin", "a large margin", "no scores"],
)
def test_without_a_tolerance_the_cold_answers_margin_decides(
    noise: float, behaviour: dict[str, Any], code: int, run_script: RunScript
) -> None:
    """The margin rule decides. Without scores, nothing can be decided."""
    got, output = run_script(case_of(*AGAIN, noise_nats=noise), corrupt="tokens", **behaviour)
    assert got == code, output


@pytest.mark.parametrize("case", [noisy(), case_of(*AGAIN, noise_nats=1.0)], ids=["tolerance", "margin"])
def test_a_correct_answer_of_a_noisy_engine_is_no_bug(case: Case, run_script: RunScript) -> None:
    """An answer of another length is the bug, however close its tokens are."""
    assert run_script(case)[0] == NO_BUG
    stop = changed(LONG, options=ResponseOptions(stop=LETTERS))
    ended = msgspec.structs.replace(case, workload=msgspec.to_builtins(Workload((burst(LONG), burst(stop)))))
    assert run_script(ended, corrupt="end")[0] == BUG


@pytest.mark.parametrize(("keeps", "code"), [(True, BUG), (False, NO_BUG)])
def test_a_reset_that_keeps_the_cache_is_the_bug(keeps: bool, code: int, run_script: RunScript) -> None:
    """The count shows it, while the answers are right."""
    case = with_count_bounds(case_of(burst(SHORT), Reset(), burst(SHORT)), at_least=0, at_most=0)
    assert run_script(case, keeps=keeps)[0] == code


@pytest.mark.parametrize(
    ("at_least", "at_most", "code"), [(32, 43, NO_BUG), (33, 43, BUG), (16, 31, NO_BUG)], ids=["enough", "few", "many"]
)
def test_too_few_cached_tokens_are_the_bug(at_least: int, at_most: int, code: int, run_script: RunScript) -> None:
    """The fake server hits two whole blocks. More than allowed is not this bug."""
    counts = {"at_least": at_least, "at_most": at_most}
    case = with_count_bounds(case_of(burst(SHORT), burst(SHORT)), **counts, failure=FailureClass.LOST_REUSE)
    assert run_script(case)[0] == code


@pytest.mark.parametrize(
    ("failing", "at_least", "code"), [(3, 33, BUG), (3, 32, UNTESTED), (1, 33, UNTESTED)], ids=["few", "right", "first"]
)
def test_of_two_implementations_the_tested_one_is_played(
    failing: int, at_least: int, code: int, run_script: RunScript
) -> None:
    """What the other one hit is owed. A script cannot tell what is in no count, or in the other one's half."""
    both = twice(Workload((burst(SHORT), burst(SHORT))))
    case = case_of(*both.steps, failing_request=failing, first_difference=None, failure_class=FailureClass.LOST_REUSE)
    row = report_samples.request(failing, cached_tokens=32, cached_at_least=at_least, cached_at_most=43)
    assert run_script(msgspec.structs.replace(case, requests=[row]))[0] == code


def test_a_reset_during_a_burst_is_played(run_script: RunScript) -> None:
    """The reset is sent while the first request of the burst runs."""
    midst = Burst(requests=(LONG,), meanwhile=Meanwhile(change=Reset(), after_tokens=2))
    case = with_count_bounds(case_of(burst(LONG), midst, burst(LONG)), at_least=0, at_most=0)
    assert run_script(case, pace=0.01)[0] == NO_BUG
    assert run_script(case, pace=0.01, keeps=True)[0] == BUG


@pytest.mark.parametrize(
    ("story", "behaviour", "says"),
    [
        ("a chat again", {"chats": False}, "/tokenize"),
        ("after silence and reset", {"models": None}, ""),
        ("side by side, late and urgent", {"refuses": ("priority",)}, "400"),
        ("several answers", {"refuses": ("n",)}, "400"),
        ("several answers", {"token_ids": False}, "no token ids"),
        ("side by side, late and urgent", {"token_ids": False}, "no token ids"),
        ("a chat again", {"token_ids": False}, "no token ids"),
    ],
)
def test_a_server_that_lacks_a_needed_feature_is_not_the_bug(
    story: str, behaviour: dict[str, Any], says: str, run_script: RunScript
) -> None:
    """The case cannot be tested on such a server."""
    code, output = run_script(case_of(*STORIES[story]), **behaviour)
    assert code == UNTESTED, output
    assert "could not test" in output
    assert says in output


@pytest.mark.parametrize(
    ("failure", "ended", "code"),
    [(FailureClass.CRASH, True, BUG), (FailureClass.CRASH, False, NO_BUG), (FailureClass.CORRUPT, True, NO_BUG)],
)
def test_a_crashed_engine_is_the_bug_of_a_crash(
    failure: FailureClass, ended: bool, code: int, run_script: RunScript
) -> None:
    """No cold answer can be had from it.

    For a case of wrong answers, the answers decide and not the server's health.
    """
    done, output = run_script(case_of(*STORIES["a chat again"], failure_class=failure), ended=ended)
    assert done == code, output
    assert ("the engine has ended" in output) is (code == BUG)


@pytest.mark.parametrize(("error", "code"), [("HTTP 500", BUG), ("", NO_BUG)])
def test_a_crash_that_does_not_need_the_cache_is_known_by_its_error(
    error: str, code: int, run_script: RunScript
) -> None:
    """The class of its case only says that the cache is not the cause. Without an error, the answers are compared."""
    case = case_of(*STORIES["a chat again"], failure_class=FailureClass.NOT_THE_CACHE)
    rows = [msgspec.structs.replace(row, error=error) for row in case.requests]
    done, output = run_script(msgspec.structs.replace(case, requests=rows), ended=True)
    assert done == code, output


def test_a_failure_of_no_single_request_cannot_be_tested(run_script: RunScript) -> None:
    """For a counter or a gauge, the scenario is played and the script says where to find the value."""
    case = case_of(burst(SHORT), failing_request=None, first_difference=None, failure_class=FailureClass.ACCOUNTING)
    code, output = run_script(case)
    assert code == UNTESTED
    assert "/metrics" in output


@pytest.mark.parametrize(
    "busy",
    [
        [ask(("stem", 40), adapter="tenant", max_tokens=8)],
        pytest.param(
            [ask(("other", 40), max_tokens=8), ask(("stem", 40), adapter="tenant", max_tokens=8, offset_ms=150)],
            marks=pytest.mark.nightly,
        ),
    ],
    ids=["as it is sent", "after a token of another one"],
)
def test_a_request_that_an_adapter_change_overlaps_may_be_of_either_version(
    busy: list[Request], run_script: RunScript, tmp_path: Path
) -> None:
    """The server has not started the request when its adapter is replaced, so an answer of the new version is right."""
    recipes = {}
    for name in "AB":
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_config.json").write_text("{}")
        (tmp_path / name / "adapter_model.safetensors").write_text(name)
        recipes[name] = {"path": str(tmp_path / name)}
    change = Meanwhile(change=put("B", route=Route.IN_PLACE), after_tokens=len(busy) - 1)
    steps = (put("A"), Burst(requests=tuple(busy), meanwhile=change))
    code, output = run_script(case_of(*steps, recipes=recipes, failure_class=FailureClass.STALE_STATE), delay=0.4)
    assert code == NO_BUG, output


def test_extra_fields_are_what_coldproof_sends() -> None:
    """A plain request has no extra fields."""
    assert extra_fields(ask()) == {}
    assert extra_fields(ask(priority=-5)) == {"priority": -5}
    assert extra_fields(ask(options=ResponseOptions(answers=2))) == {
        "n": 2,
        "temperature": 1,
    }
    assert extra_fields(ask(options=ResponseOptions(stop=("a",)))) == {"stop": ["a"], "ignore_eos": False}


@pytest.mark.parametrize(
    ("step", "line"),
    [
        (Reset(), "story.client.reset()"),
        (
            Reset((ResetScope.RUNNING, ResetScope.SECOND_TIER)),
            "story.client.reset('running requests', 'the second tier')",
        ),
        (Idle(50), "time.sleep(0.05)"),
        (Restart(EngineChange.ROPE), "story.restart('other rope settings')"),
        (
            Burst(requests=(SHORT,), meanwhile=Meanwhile(change=Reset(), after_tokens=3)),
            "story.during(lambda: story.client.reset(), 3, dict(",
        ),
        (
            Burst(
                requests=(SHORT,),
                meanwhile=Meanwhile(change=Reset(), after_tokens=0, gap_ms=500, first=Side.DECODE),
            ),
            "lambda: [story.side('decode').client.reset(), time.sleep(0.5), story.side('prefill').client.reset()], 0,",
        ),
        (burst(changed(SHORT, abort=Abort(after_ms=30))), "abort=(0, 30)"),
        (burst(changed(SHORT, chat=True, priority=2)), "chat=True, extra={'priority': 2}"),
        (burst(changed(SHORT, rank=1)), "headers={'X-data-parallel-rank': '1'})"),
        (burst(changed(SHORT, hand_over_ms=900)), "headers={'X-hand-over-ms': '900'})"),
        (RestartSide(Side.DECODE), "story.client.restart_side('decode')"),
        (burst(changed(CHAT, endpoint=Endpoint.MESSAGES)), "chat=True, endpoint='/v1/messages')"),
    ],
)
def test_each_step_is_one_line_of_the_scenario(step: Step, line: str) -> None:
    """A step is written as a person would write it."""
    (made,) = scenario(Workload((step,)))
    assert line in made
