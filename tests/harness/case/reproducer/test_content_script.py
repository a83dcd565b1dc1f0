"""The script of a case with embedding rows, images or sessions sends the prompts that Coldproof sent."""

from __future__ import annotations

import ast
from typing import Any

import msgspec
import pytest
from support.histories import burst, outcome
from support.scripts import case_of

from coldproof.adapters.protocol.embedding_rows import NO_ROW
from coldproof.adapters.protocol.images import Arguments, Encoding
from coldproof.adapters.vllm.reproducer import OPENAI, WITH_CONTENT
from coldproof.harness.case.reproducer.curl import CurlScript
from coldproof.harness.case.reproducer.script import reproducer, reproduction
from coldproof.harness.history.prompts import hidden_of, tokens_of
from coldproof.harness.workload.steps import CloseSession, Image, Prompt, Request, Rows, Segment, Workload
from coldproof.reports.schema.case import Case

FLAGS = (
    "--worker-cls x.Y --additional-config '{}' --model /cache/models/0123456789abcdef --port 0 --enable-prompt-embeds"
)


def asked(segment: Segment, **more: Any) -> Request:
    return Request(prompt=Prompt((segment, Segment("tail", 3))), **more)


def mixed(*spans: tuple[int, int], **edits: Any) -> Segment:
    named = {name: edits.pop(name) for name in ("changed", "swapped") if name in edits}
    return Segment("s", 9, rows=Rows(spans, **edits), **named)


def case(*requests: Request, engine: str = "vllm-inproc") -> Case:
    workload = Workload(tuple(burst(request) for request in requests))
    command = f"python -m vllm.entrypoints.openai.api_server {FLAGS}"
    config = {"command": command, "environment": "VLLM_X=1"}
    found = case_of(engine)
    return msgspec.structs.replace(found, workload=msgspec.to_builtins(workload), engine_config=config, recipes={})


def server(script: str, nonce: str) -> Any:
    """Return the script's server class, without its engine, in one attempt with this nonce."""
    names: dict[str, Any] = {"__name__": "case"}
    exec(compile(script, "case.py", "exec"), names)
    made = names["Server"].__new__(names["Server"])
    names["Story"].__init__(made)
    made.nonce, made.hidden = nonce, {}
    return made, names


PROMPTS = {
    "tokens": Segment("s", 9),
    "rows at the end": mixed((4, 9)),
    "rows only": mixed((0, 9)),
    "two spans, equal rows": mixed((1, 3), (5, 7), equal=True),
    "token ids 0": mixed((1, 3), blank=True),
    "nothing under them": mixed((1, 3), alone=True),
    "rows of zeros": mixed((1, 3), (5, 9), blank=True, alone=True),
    "a row beside rows of zeros": mixed((1, 3), blank=True, alone=True, changed=2),
    "another token": mixed((1, 3), blank=True, changed=5),
    "another row": mixed((1, 3), changed=2),
    "one value": mixed((1, 3), nudged=2),
    "swapped": mixed((1, 3), swapped=2),
    "an image": Segment("s", 9, image=Image("cat")),
    "an image that a client names, in a file": Segment("s", 9, image=Image("cat", 7, Encoding.PNG, "mine")),
    "an image with arguments": Segment("s", 9, image=Image("cat", arguments=Arguments.RESCALED)),
}


@pytest.mark.parametrize("segment", PROMPTS.values(), ids=PROMPTS)
def test_a_script_sends_the_same_prompt(segment: Segment) -> None:
    """What the model sees, and what is hidden from it."""
    request = asked(segment)
    made, names = server(reproducer(case(request, asked(mixed((0, 2))))), "n")
    (spec,) = calls(made, names, 0)
    assert tuple(made.prompt(spec)) == tokens_of(request, "n", {})
    assert tuple(made.hidden[0]) == (hidden_of(request, "n", {}) or (NO_ROW,) * 16)


def test_a_script_continues_a_prompt_with_rows() -> None:
    """The answer has no rows under its tokens."""
    first, turn = asked(mixed((4, 9))), Request(prompt=Prompt((Segment("turn", 2),), continues=0))
    made, names = server(reproducer(case(first, turn)), "n")
    (spec,), (then,) = calls(made, names, 0), calls(made, names, 1)
    seen = made.prompt(spec)
    made.sent[0] = {"ids": seen}
    made.replies[0] = names["Reply"]()
    made.replies[0].add({"choices": [{"token_ids": [7, 8]}]})
    before = outcome(0, tuple(seen), (7, 8), hidden=tuple(made.hidden[0]))
    assert tuple(made.prompt(then)) == tokens_of(turn, "n", {0: before})
    assert tuple(made.hidden[1]) == hidden_of(turn, "n", {0: before})


def test_a_script_sends_a_turn_of_a_session_to_the_engine_in_it() -> None:
    """With its whole prompt, of which the script sends what is new; and it closes the session where the case does."""
    first = asked(Segment("s", 9), session="a")
    turn = Request(prompt=Prompt((Segment("turn", 2),), continues=0, start=0, end=-1), session="a")
    steps = [burst(first), burst(turn), CloseSession("a", aborted=True), burst(asked(Segment("s", 9)))]
    found = case(first)
    found = msgspec.structs.replace(found, workload=msgspec.to_builtins(Workload(tuple(steps))))
    assert reproduction(found) is WITH_CONTENT
    source = reproducer(found)
    made, names = server(source, "n")
    made.close_session = lambda name, *, aborted: closed.append((name, aborted))
    closed: list[tuple[str, bool]] = []
    (spec,), (then,) = calls(made, names, 0), calls(made, names, 1)
    assert (spec["session"], then["session"], set(closed)) == ("a", "a", {("a", True)})
    seen = made.prompt(spec)
    made.sent[0] = {"ids": seen}
    made.replies[0] = names["Reply"]()
    made.replies[0].add({"choices": [{"token_ids": [7, 8]}]})
    assert tuple(made.prompt(then)) == tokens_of(turn, "n", {0: outcome(0, tuple(seen), (7, 8))})
    assert made.prompt(then)[: len(seen) + 1] == [*seen, 7]


def calls(made: Any, names: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """Return the requests of one burst of the script's scenario."""
    found: list[list[dict[str, Any]]] = []
    made.ask = lambda specs, **_: found.append(specs)
    names["scenario"](made)
    return found[number]


def test_only_cases_with_rows_run_vllm_in_the_script() -> None:
    """A server takes rows beside token ids only in chats. So there is nothing to send with curl either."""
    plain, rows = case(asked(Segment("s", 9))), case(asked(mixed((4, 9))))
    assert reproduction(plain) is OPENAI
    assert reproduction(rows) is WITH_CONTENT
    assert [step.commands for step in CurlScript(rows).steps()] == [""]
    assert "curl" in next(CurlScript(plain).steps()).commands


def test_the_script_starts_a_model_with_the_flags_of_the_case() -> None:
    """Not the worker without a model, and with the environment of the case."""
    source = reproducer(case(asked(mixed((4, 9)))))
    ast.parse(source)
    (command,) = (line for line in source.splitlines() if line.startswith("COMMAND = "))
    assert "--enable-prompt-embeds" in command
    assert "VLLM_X=1 " in command
    assert "--worker-cls" not in command
    assert "api_server" not in command
    assert "--model coldproof-files/model " in command


def test_the_script_of_a_case_with_images_writes_the_model_and_keeps_the_worker() -> None:
    """No model with images that is small enough has weights here."""
    found = msgspec.structs.replace(case(asked(Segment("s", 9, image=Image("cat")))), cell="images")
    (command,) = (line for line in reproducer(found).splitlines() if line.startswith("COMMAND = "))
    assert "--model coldproof-files/image-model " in command
    assert "--worker-cls x.Y" in command
