"""A reproducer plays chats, aborts, resets, priorities and surfaces; its exit code is 1 for the bug and nothing else.

Played against the stand-in server: clean, wrong on hits in one way, or without what the scenario needs.
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

from coldproof.adapters.protocol.doors import IMPOSSIBLE_PRIORITY, Door
from coldproof.adapters.protocol.requests import Abort, ResponseOptions
from coldproof.adapters.protocol.resets import ResetScope
from coldproof.adapters.protocol.restarts import EngineChange
from coldproof.adapters.protocol.sides import Side
from coldproof.harness.case.reproducer.script import reproducer
from coldproof.harness.case.reproducer.steps import extra_fields, scenario
from coldproof.harness.schema.case import Case
from coldproof.harness.schema.verdict import FailureClass
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

GONE, THERE, UNTRIED = 0, 1, 2
TURN = ask(("turn", 20), continues=0, chat=True)
CHAT = ask(("prelude", 40), ("question", 9), chat=True)
CUT = ask(("turn", 20), continues=0, cut=(20, 42), max_tokens=4)
SHORT, LONG = ask(("stem", 40), max_tokens=4), ask(("stem", 40), max_tokens=20)


def changed(request: Request, **changes: Any) -> Request:
    """The same request, asked otherwise."""
    return msgspec.structs.replace(request, **changes)


SWAPPED = changed(SHORT, prompt=Prompt((Segment("stem", 40, swapped=20),)), salt="red+tenant")
DOORS = [burst(changed(CHAT, door=door, salt="red")) for door in Door]
ODD = [burst(changed(CHAT, door=door, priority=IMPOSSIBLE_PRIORITY)) for door in (Door.CHAT, Door.MESSAGES)]
LETTERS = tuple("abcdefghijklmnopqrstuvwxyz")  # one of them stands in nearly every one of the stand-in's answers
STORIES: dict[str, tuple[Step, ...]] = {
    "a chat again": (burst(CHAT), burst(CHAT)),
    "a chat's next turn": (burst(CHAT), burst(TURN), burst(TURN)),
    "through messages": (burst(CHAT), burst(changed(CHAT, door=Door.MESSAGES))),
    "through token ids": (burst(CHAT), burst(changed(CHAT, door=Door.GENERATE))),
    "through responses": (burst(CHAT), burst(changed(CHAT, door=Door.RESPONSES))),
    "a chat through completions": (burst(CHAT), burst(changed(CHAT, door=Door.COMPLETIONS))),
    "a turn through every door": (*DOORS, burst(changed(TURN, door=Door.MESSAGES, salt="red"))),
    "a cut history again": (burst(SHORT), burst(CUT), burst(CUT)),
    "after an abort": (burst(changed(LONG, abort=Abort(after_tokens=2))), burst(LONG)),
    "an abort on a hit": (burst(LONG), burst(changed(LONG, abort=Abort(after_tokens=2)))),
    # The stand-in needs a moment to have read what its client no longer waits for.
    "after a silence": (burst(changed(LONG, abort=Abort(after_ms=1))), Idle(300), burst(LONG)),
    "side by side, late and urgent": (burst(SHORT, changed(SHORT, priority=-5, offset_ms=60)),),
    "on two ranks": (burst(changed(SHORT, rank=0)), burst(changed(SHORT, rank=1)), burst(changed(SHORT, rank=0))),
    "after silence and reset": (burst(SHORT), Idle(5), Reset(), burst(SHORT), burst(SHORT)),
    "several answers": (burst(SHORT), burst(changed(SHORT, surface=ResponseOptions(answers=3)))),
    "swapped tokens, and a salt of two parts": (burst(SHORT), burst(SWAPPED), burst(SWAPPED)),
    "a stop string": (burst(LONG), burst(changed(LONG, max_tokens=150, surface=ResponseOptions(stop=LETTERS)))),
    "prompt logprobs": (
        burst(SHORT),
        burst(changed(SHORT, surface=ResponseOptions(prompt_logprobs=True, logprobs=True))),
    ),
    "structured output": (burst(SHORT), burst(changed(SHORT, surface=ResponseOptions(pattern="[ab]")))),
}


def case_of(*steps: Step, **changes: Any) -> Case:
    """A case whose last request was answered wrongly, unless said otherwise."""
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


def counted(case: Case, *, at_least: int, at_most: int, failure: FailureClass = FailureClass.ACCOUNTING) -> Case:
    """The same case about a count out of its bounds."""
    row = report_samples.request(case.failing_request or 0, cached_at_least=at_least, cached_at_most=at_most)
    return msgspec.structs.replace(case, requests=[row], first_difference=None, failure_class=failure)


Play = Callable[..., tuple[int, str]]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Runs a case's script against a stand-in with these manners; its exit code and what it said."""

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
        said = done.stdout + done.stderr
        assert "Traceback" not in said, said
        return done.returncode, said

    return run


@pytest.mark.parametrize("story", STORIES)
def test_a_right_server_is_told_that_the_bug_is_gone(story: str, play: Play) -> None:
    """Hits and all, however often it is tried."""
    code, said = play(case_of(*STORIES[story]))
    assert code == GONE, said
    assert said.count("  answer ") == 5
    assert said.endswith("correct\n")


@pytest.mark.parametrize("story", STORIES)
def test_a_wrong_answer_on_a_hit_is_the_bug(story: str, play: Play) -> None:
    """The first time already."""
    code, said = play(case_of(*STORIES[story]), corrupt="tokens")
    assert code == THERE, said
    assert said.count("  answer ") == 1
    assert said.endswith("WRONG\n")


@pytest.mark.parametrize(
    ("story", "part", "failure"),
    [
        ("several answers", "others", FailureClass.CORRUPT),
        ("a stop string", "end", FailureClass.API),
        ("prompt logprobs", "scores", FailureClass.API),
    ],
)
def test_what_is_wrong_beside_the_tokens_is_the_bug_too(
    story: str, part: str, failure: FailureClass, play: Play
) -> None:
    """Its tokens are right, and so are its counts: a script that only looked at those would say that it is gone."""
    about = {"first_difference": None, "failure_class": failure}
    assert play(case_of(*STORIES[story], **about), corrupt=part)[0] == THERE
    assert play(case_of(*STORIES[story], **about))[0] == GONE


@pytest.mark.parametrize(
    ("behaviour", "code"),
    [
        ({"drops": (("/v1/messages", "priority"),)}, THERE),
        ({}, GONE),
        ({"drops": (("/v1/messages", "priority"),), "ignores": ("priority",)}, GONE),
    ],
    ids=["at one door", "nowhere", "at every door"],
)
def test_a_field_that_one_door_ignores_is_the_bug(behaviour: dict[str, Any], code: int, play: Play) -> None:
    """Its answer is right: what is wrong is that there is one, where another door refuses the same."""
    case = case_of(*ODD, failure_class=FailureClass.API, first_difference=None)
    got, said = play(case, **behaviour)
    assert got == code, said


def test_only_what_names_a_door_has_its_code() -> None:
    """Other scripts stay as short as they were."""
    assert "at_door" in reproducer(case_of(*DOORS))
    assert "at_door" not in reproducer(case_of(burst(CHAT)))
    assert "ignores_what_others_refuse" not in reproducer(case_of(*DOORS))


AGAIN = (burst(LONG), burst(LONG))
# The stand-in scores its tokens -0.5 each, 1.5 better than the next, and a prompt's tokens between -0.3 and -1.3.
BAND = report_samples.band(score_nats=1.0, margin_nats=1.8, flips=0.5, error_rate=0.01)


def noisy(failure: FailureClass = FailureClass.CORRUPT, **limits: float) -> Case:
    """A case of an engine whose right answers lie so far apart."""
    return case_of(*AGAIN, failure_class=failure, noise_nats=1.8, band=msgspec.structs.replace(BAND, **limits))


@pytest.mark.parametrize(
    ("case", "behaviour", "code"),
    [
        (noisy(), {}, GONE),
        (noisy(), {"behind": 0.2}, GONE),
        (noisy(), {"behind": 0.4}, THERE),
        (noisy(score_nats=0.1), {}, THERE),
        (noisy(margin_nats=1.6), {"behind": 0.2}, THERE),
        (noisy(FailureClass.STALE_STATE), {"behind": 0.2}, THERE),
        (noisy(FailureClass.STALE_STATE), {}, GONE),
        (noisy(FailureClass.STALE_STATE, error_rate=1e-9), {"behind": 0.2}, GONE),
    ],
    ids=[
        "alike",
        "near",
        "behind",
        "apart",
        "a narrow band",
        "somebody's",
        "by chance",
        "by chance, for so few tokens",
    ],
)
def test_on_a_noisy_engine_another_token_is_the_bug_where_no_noise_explains_it(
    case: Case, behaviour: dict[str, Any], code: int, play: Play
) -> None:
    """Both sides' scores of the very same tokens tell; its right answers part from each other, too."""
    got, said = play(case, corrupt="tokens", **behaviour)
    assert got == code, said
    assert "largest margin" in said


@pytest.mark.parametrize(
    ("noise", "behaviour", "code"),
    [(2.0, {}, GONE), (1.0, {}, THERE), (1.0, {"ignores": ("logprobs",)}, UNTRIED)],
    ids=["a near call", "a clear call", "no scores"],
)
def test_without_a_band_the_cold_answers_lead_tells(
    noise: float, behaviour: dict[str, Any], code: int, play: Play
) -> None:
    """By the margin rule; where no scores are told, nobody can tell."""
    got, said = play(case_of(*AGAIN, noise_nats=noise), corrupt="tokens", **behaviour)
    assert got == code, said


@pytest.mark.parametrize("case", [noisy(), case_of(*AGAIN, noise_nats=1.0)], ids=["band", "margin"])
def test_a_right_answer_of_a_noisy_engine_is_as_cold(case: Case, play: Play) -> None:
    """And one of another length is the bug, however near its tokens are."""
    assert play(case)[0] == GONE
    stop = changed(LONG, surface=ResponseOptions(stop=LETTERS))
    ended = msgspec.structs.replace(case, workload=msgspec.to_builtins(Workload((burst(LONG), burst(stop)))))
    assert play(ended, corrupt="end")[0] == THERE


@pytest.mark.parametrize(("keeps", "code"), [(True, THERE), (False, GONE)])
def test_a_reset_that_lies_is_the_bug(keeps: bool, code: int, play: Play) -> None:
    """By the count; the answers are right."""
    case = counted(case_of(burst(SHORT), Reset(), burst(SHORT)), at_least=0, at_most=0)
    assert play(case, keeps=keeps)[0] == code


@pytest.mark.parametrize(
    ("at_least", "at_most", "code"), [(32, 43, GONE), (33, 43, THERE), (16, 31, GONE)], ids=["enough", "few", "many"]
)
def test_too_few_cached_tokens_are_the_bug(at_least: int, at_most: int, code: int, play: Play) -> None:
    """The stand-in hits two whole blocks. More than allowed is not this bug."""
    counts = {"at_least": at_least, "at_most": at_most}
    case = counted(case_of(burst(SHORT), burst(SHORT)), **counts, failure=FailureClass.LOST_REUSE)
    assert play(case)[0] == code


def test_a_reset_in_the_midst_of_a_burst_is_played(play: Play) -> None:
    """While its first request runs."""
    midst = Burst(requests=(LONG,), meanwhile=Meanwhile(change=Reset(), after_tokens=2))
    case = counted(case_of(burst(LONG), midst, burst(LONG)), at_least=0, at_most=0)
    assert play(case, pace=0.01)[0] == GONE
    assert play(case, pace=0.01, keeps=True)[0] == THERE


@pytest.mark.parametrize(
    ("story", "behaviour", "says"),
    [
        ("a chat again", {"chats": False}, "/tokenize"),
        ("after silence and reset", {"models": None}, ""),
        ("side by side, late and urgent", {"refuses": ("priority",)}, "400"),
        ("several answers", {"refuses": ("n",)}, "400"),
    ],
)
def test_a_server_that_lacks_what_it_takes_is_not_the_bug(
    story: str, behaviour: dict[str, Any], says: str, play: Play
) -> None:
    """It cannot be tried there."""
    code, said = play(case_of(*STORIES[story]), **behaviour)
    assert code == UNTRIED, said
    assert "could not test" in said
    assert says in said


@pytest.mark.parametrize(
    ("failure", "ended", "code"),
    [(FailureClass.CRASH, True, THERE), (FailureClass.CRASH, False, GONE), (FailureClass.CORRUPT, True, GONE)],
)
def test_an_engine_that_has_ended_is_the_bug_of_a_crash(
    failure: FailureClass, ended: bool, code: int, play: Play
) -> None:
    """No cold answer can be had from it. Where answers are wrong, they tell, and not the server's health."""
    done, said = play(case_of(*STORIES["a chat again"], failure_class=failure), ended=ended)
    assert done == code, said
    assert ("the engine has ended" in said) is (code == THERE)


@pytest.mark.parametrize(("error", "code"), [("HTTP 500", THERE), ("", GONE)])
def test_a_crash_that_does_not_need_the_cache_is_told_by_its_error(error: str, code: int, play: Play) -> None:
    """The class of its case says that the cache is not the cause; an answer that is only wrong is compared."""
    case = case_of(*STORIES["a chat again"], failure_class=FailureClass.NOT_THE_CACHE)
    rows = [msgspec.structs.replace(row, error=error) for row in case.requests]
    done, said = play(msgspec.structs.replace(case, requests=rows), ended=True)
    assert done == code, said


def test_what_is_wrong_with_no_single_request_cannot_be_tried(play: Play) -> None:
    """A counter or a gauge: the scenario is played, and the script says where to look."""
    case = case_of(burst(SHORT), failing_request=None, first_difference=None, failure_class=FailureClass.ACCOUNTING)
    code, said = play(case)
    assert code == UNTRIED
    assert "/metrics" in said


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
def test_a_request_that_a_change_overtook_may_be_of_either_version(
    busy: list[Request], play: Play, tmp_path: Path
) -> None:
    """The server has not begun with it when its adapter is replaced: answered as the new one it is right."""
    recipes = {}
    for name in "AB":
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_config.json").write_text("{}")
        (tmp_path / name / "adapter_model.safetensors").write_text(name)
        recipes[name] = {"path": str(tmp_path / name)}
    change = Meanwhile(change=put("B", route=Route.IN_PLACE), after_tokens=len(busy) - 1)
    steps = (put("A"), Burst(requests=tuple(busy), meanwhile=change))
    code, said = play(case_of(*steps, recipes=recipes, failure_class=FailureClass.STALE_STATE), delay=0.4)
    assert code == GONE, said


def test_extra_fields_are_what_coldproof_sends() -> None:
    """Beside the usual: nothing for a plain request."""
    assert extra_fields(ask()) == {}
    assert extra_fields(ask(priority=-5)) == {"priority": -5}
    assert extra_fields(ask(surface=ResponseOptions(answers=2))) == {
        "n": 2,
        "temperature": 1,
    }
    assert extra_fields(ask(surface=ResponseOptions(stop=("a",)))) == {"stop": ["a"], "ignore_eos": False}


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
        (burst(changed(CHAT, door=Door.MESSAGES)), "chat=True, door='/v1/messages')"),
    ],
)
def test_each_step_is_one_line_of_the_scenario(step: Step, line: str) -> None:
    """As a person would write it down."""
    (made,) = scenario(Workload((step,)))
    assert line in made
