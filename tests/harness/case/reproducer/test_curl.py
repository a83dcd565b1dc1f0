"""The commands of cases/ID.md are run by a shell, with a `curl` that writes down what it is given."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from support import report_samples
from support.drawn_workloads import TIGHT
from support.histories import ask, burst, put

from coldproof.adapters.protocol.doors import Door
from coldproof.adapters.protocol.requests import Abort, ResponseOptions, Stage
from coldproof.adapters.protocol.resets import ResetScope
from coldproof.harness.case.reproducer.curl import CurlScript
from coldproof.harness.case.reproducer.script import recorded_workload
from coldproof.harness.workload.generators.mixed import mixed
from coldproof.harness.workload.steps import (
    Idle,
    Meanwhile,
    Prompt,
    Request,
    Reset,
    Route,
    Segment,
    Step,
    Unload,
    Workload,
)
from coldproof.harness.workload.tokens import nonce_tokens, segment_tokens
from coldproof.reports.schema.case import Case

NONCE = "abc123"
RECORD = 'curl() { printf "%s\\0" "$@" > "$(mktemp "$CALLS/$(date +%s%N).XXXX")"; }'


def case_of(*steps: Step) -> Case:
    """A case of these steps, each request answered with three tokens."""
    workload = Workload(steps)
    rows = [
        report_samples.request(number, answer=[7, 8, number], answer_text=f"said {number}")
        for number, _, _ in workload.requests()
    ]
    return report_samples.case(workload=msgspec.to_builtins(workload), nonce=NONCE, requests=rows, id="CASE-1")


def played(case: Case, folder: Path) -> list[list[str]]:
    """The words of every call, in the order in which they were made."""
    shell, calls = CurlScript(case), folder / "calls"
    calls.mkdir()
    for content in "ABC":
        (folder / "coldproof-files" / f"adapter-{content}").mkdir(parents=True, exist_ok=True)
        (folder / "coldproof-files" / f"adapter-{content}" / "adapter_config.json").write_text(content)
    lines = [f"CALLS={calls}", RECORD, "sleep() { :; }", "jq() { echo 5,6; }"]
    lines += [*shell.variables(), *(step.commands for step in shell.steps())]
    done = subprocess.run(
        ["bash", "-eu", "-c", "\n".join(lines)], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [call.read_text().split("\0")[:-1] for call in sorted(calls.iterdir())]


def bodies(calls: list[list[str]]) -> list[Any]:
    """What each call posts; None for one without a body."""
    return [json.loads(call[call.index("-d") + 1]) if "-d" in call else None for call in calls]


def test_each_door_has_its_own_command(tmp_path: Path) -> None:
    """With the salt as the run sent it. A door for token ids gets what the server makes of the messages."""
    doors = (Door.MESSAGES, Door.RESPONSES, Door.GENERATE, Door.COMPLETIONS)
    chat = ask(("prelude", 20), ("question", 9), chat=True, salt="red")
    calls = played(case_of(*(burst(msgspec.structs.replace(chat, door=door)) for door in doors)), tmp_path)
    sent = {
        call[0].removeprefix("$SERVER").partition(":8000")[2]: body
        for call, body in zip(calls, bodies(calls), strict=True)
    }
    assert all(sent[door.value]["cache_salt"] == f"red-{NONCE}" for door in doors)
    assert sent["/v1/messages"]["system"] == sent["/v1/responses"]["input"][0]["content"]
    assert sent["/v1/messages"]["messages"] == sent["/v1/responses"]["input"][1:]
    assert sent["/inference/v1/generate"]["token_ids"] == sent["/v1/completions"]["prompt"] == [5, 6]


@pytest.mark.parametrize("chat", [False, True])
def test_a_turn_after_the_loss_of_the_engine_continues_what_is_known(tmp_path: Path, chat: bool) -> None:
    """The engine was lost before the request that it continues: the case has no row for either, and no answer."""
    first, then = ask(("stem", 40), chat=chat), ask(("turn", 5), continues=0, chat=chat)
    for rows, name in (([], "before"), ([report_samples.request(0, answer=[], answer_text="")], "during")):
        (tmp_path / name).mkdir()
        case = msgspec.structs.replace(case_of(burst(first), burst(then)), requests=rows)
        made = bodies(played(case, tmp_path / name))
        assert len(made) == 2
        if not chat:
            turn = segment_tokens(NONCE, Segment("turn", 5))
            assert made[1]["prompt"] == [*made[0]["prompt"], *turn]


def test_prompts_are_the_tokens_of_the_run(tmp_path: Path) -> None:
    """Nonce first, then the segments; a next turn behind the prompt and the answer that it continues."""
    first, then = ask(("stem", 40), salt="red"), ask(("turn", 5), continues=0)
    made = bodies(played(case_of(burst(first), burst(then)), tmp_path))
    stem = [*nonce_tokens(NONCE), *segment_tokens(NONCE, Segment("stem", 40))]
    assert made[0]["prompt"] == stem
    assert made[0]["cache_salt"] == f"red-{NONCE}"
    assert made[0]["max_tokens"] == first.max_tokens
    assert made[1]["prompt"] == [*stem, 7, 8, 0, *segment_tokens(NONCE, Segment("turn", 5))]


@pytest.mark.parametrize("part", [(30, 45), (0, -1)])
def test_a_cut_history_is_its_tokens_of_the_run(tmp_path: Path, part: tuple[int, int]) -> None:
    """Of prompt and answer; a turn behind it goes on from them."""
    cut = ask(("turn", 5), continues=0, cut=part)
    calls = played(case_of(burst(ask(("stem", 40))), burst(cut), burst(ask(("more", 2), continues=1))), tmp_path)
    stem = [*nonce_tokens(NONCE), *segment_tokens(NONCE, Segment("stem", 40))]
    kept = [*[*stem, 7, 8, 0][slice(*part)], *segment_tokens(NONCE, Segment("turn", 5))]
    _, second, third = (body["prompt"] for body in bodies(calls))
    assert second == kept
    assert third[: len(kept)] == kept
    assert third[-2:] == [*segment_tokens(NONCE, Segment("more", 2))]


def test_edits_of_a_segment_are_other_tokens(tmp_path: Path) -> None:
    """Their variables have names of their own."""
    kinds = [Segment("stem", 9), Segment("stem", 9, changed=3), Segment("stem", 9, swapped=3), Segment("stem", 8)]
    made = bodies(played(case_of(*(burst(Request(prompt=Prompt((kind,)))) for kind in kinds)), tmp_path))
    for kind, body in zip(kinds, made, strict=True):
        assert body["prompt"] == [*nonce_tokens(NONCE), *segment_tokens(NONCE, kind)]


def test_adapters_are_put_into_place_and_loaded_by_their_route(tmp_path: Path) -> None:
    """The same path holds the new files when the engine is told."""
    steps = (
        put("A", path="p"),
        put("B", path="p", route=Route.IN_PLACE),
        put("C", path="p", route=Route.UNLOAD_LOAD),
        Unload("tenant"),
    )
    calls = played(case_of(*steps), tmp_path)
    files, name = tmp_path / "coldproof-files", f"tenant-{NONCE}"
    load = {"lora_name": name, "lora_path": f"{files}/p-{NONCE}"}
    assert bodies(calls) == [load, load | {"load_inplace": True}, {"lora_name": name}, load, {"lora_name": name}]
    assert [call[0].rsplit("/", 1)[-1] for call in calls] == [
        "load_lora_adapter",
        "load_lora_adapter",
        "unload_lora_adapter",
        "load_lora_adapter",
        "unload_lora_adapter",
    ]
    assert (files / f"p-{NONCE}" / "adapter_config.json").read_text() == "C"


def test_requests_side_by_side_aborts_and_changes_in_their_midst(tmp_path: Path) -> None:
    """All of them go out; a client that hangs up has a time limit."""
    hang_up = msgspec.structs.replace(ask(("stem", 40)), abort=Abort(after_ms=20))
    crowd = msgspec.structs.replace(
        burst(hang_up, ask(("stem", 40), offset_ms=30)), meanwhile=Meanwhile(change=Reset(), after_tokens=2)
    )
    calls = played(case_of(crowd, Idle(10), Reset(), Reset((ResetScope.SECOND_TIER,))), tmp_path)
    assert sum("-d" in call for call in calls) == 2
    assert sum("--max-time" in call for call in calls) == 1
    assert sum(any(word.endswith("/reset_prefix_cache") for word in call) for call in calls) == 2
    assert sum(any(word.endswith("/reset_prefix_cache?reset_external=true") for word in call) for call in calls) == 1


def test_a_client_that_looked_where_its_request_was_leaves_after_the_time_that_it_took(tmp_path: Path) -> None:
    """There are no gauges to look at here; in the script that is written beside it neither."""
    waited = ask(("stem", 40), abort=Abort(after_ms=10, at=Stage.PREFILL))
    case = case_of(burst(ask(("stem", 40), abort=Abort(after_ms=20))), burst(waited))
    rows = [msgspec.structs.replace(row, sent=1.0, finished=1.07) for row in case.requests]
    case = msgspec.structs.replace(case, requests=rows)
    limits = [call[call.index("--max-time") + 1] for call in played(case, tmp_path)]
    assert limits == ["0.02", "0.07"]
    asked_for = [request.abort for _, _, request in recorded_workload(case).requests()]
    assert asked_for == [Abort(after_ms=20), Abort(after_ms=70)]


def test_a_chat_goes_on_from_what_was_said(tmp_path: Path) -> None:
    """System and user first, then the answer that came, then the next turn."""
    chat = ask(("prelude", 6), ("question", 4), chat=True)
    made = bodies(played(case_of(burst(chat), burst(ask(("turn", 3), continues=0, chat=True))), tmp_path))
    assert [m["role"] for m in made[0]["messages"]] == ["system", "user"]
    assert made[1]["messages"][:2] == made[0]["messages"]
    assert made[1]["messages"][2] == {"role": "assistant", "content": "said 0"}
    assert made[1]["messages"][3]["role"] == "user"


@pytest.mark.parametrize("hostile", ["it's", 'a "b" $(touch pwned) `id`', "x; rm -rf .", "-n"])
def test_no_name_reaches_the_shell(hostile: str, tmp_path: Path) -> None:
    """A case file may come from anywhere."""
    steps = (put("A", name=hostile, path="p"), burst(ask((hostile, 4), adapter=hostile, salt=hostile)))
    made = bodies(played(case_of(*steps), tmp_path))
    assert made[0]["lora_name"] == f"{hostile}-{NONCE}"
    assert made[1]["cache_salt"] == f"{hostile}-{NONCE}"
    assert not (tmp_path / "pwned").exists()


@settings(max_examples=20, deadline=None)
@given(workload=mixed(TIGHT))
def test_every_drawn_workload_can_be_told(workload: Workload, tmp_path_factory: pytest.TempPathFactory) -> None:
    """As many requests go out as it has."""
    folder = tmp_path_factory.mktemp("told")
    asked = [body for body in bodies(played(case_of(*workload.steps), folder)) if body and "model" in body]
    assert len(asked) == sum(1 for _ in workload.requests())


def test_surfaces_are_asked_for(tmp_path: Path) -> None:
    """As the run asked for them."""
    made = bodies(played(case_of(burst(ask(surface=ResponseOptions(answers=3, stop=("a",))))), tmp_path))
    assert (made[0]["n"], made[0]["stop"], made[0]["ignore_eos"]) == (3, ["a"], False)
