"""The script of a case with embedding rows, images or sessions sends the prompts that Coldproof sent."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support.histories import burst, outcome
from support.scripts import case_of, module_of

from coldproof.adapters.protocol.embedding_rows import NO_ROW
from coldproof.adapters.protocol.endpoints import Endpoint
from coldproof.adapters.protocol.images import Arguments, Encoding
from coldproof.adapters.vllm.reproducer import IN_PROCESS, OPENAI
from coldproof.harness.case.reproducer.script import reproduction
from coldproof.harness.features.sessions.steps import CloseSession
from coldproof.harness.history.prompts import hidden_of, tokens_of
from coldproof.harness.schema.case import Case
from coldproof.harness.workload.steps import Image, Prompt, Request, Rows, Segment, Workload

FLAGS = (
    "--worker-cls x.Y --additional-config '{}' --model /cache/models/0123456789abcdef --port 0 --enable-prompt-embeds"
)


def request_for(segment: Segment, **more: Any) -> Request:
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


def story_of(found: Case, nonce: str) -> tuple[Any, list[list[dict[str, Any]]]]:
    """Return an attempt of a case's script with this nonce and without an engine, and the requests of its bursts."""
    names = module_of(found)
    story = names.get("SessionStory", names["Story"])(None)
    story.nonce = nonce
    bursts: list[list[dict[str, Any]]] = []
    story.ask = lambda *specs: bursts.append(list(specs))
    story.close_session = lambda name, *, aborted: closed.append((name, aborted))
    names["is_wrong"] = lambda *_: False
    names["scenario"](story)
    return story, bursts


closed: list[tuple[str, bool]] = []


def add_answer(story: Any, sent: dict[str, Any], ids: list[int]) -> None:
    """Add a request and its answer to an attempt."""
    story.sent.append(sent)
    story.replies.append(type("Answer", (), {"ids": ids})())


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
    """The tokens and the hidden parts of the prompt equal those that Coldproof sent."""
    request = request_for(segment)
    story, bursts = story_of(case(request, request_for(mixed((0, 2)))), "n")
    sent = story.prepared(bursts[0][0])
    assert tuple(sent["ids"]) == tokens_of(request, "n", {})
    assert tuple(sent["hidden"]) == (hidden_of(request, "n", {}) or (NO_ROW,) * 16)


def test_a_script_continues_a_prompt_with_rows() -> None:
    """The tokens of the answer have no rows."""
    first, turn = request_for(mixed((4, 9))), Request(prompt=Prompt((Segment("turn", 2),), continues=0))
    story, bursts = story_of(case(first, turn), "n")
    sent = story.prepared(bursts[0][0])
    add_answer(story, sent, [7, 8])
    before = outcome(0, tuple(sent["ids"]), (7, 8), hidden=tuple(sent["hidden"]))
    then = story.prepared(bursts[1][0])
    assert tuple(then["ids"]) == tokens_of(turn, "n", {0: before})
    assert tuple(then["hidden"]) == hidden_of(turn, "n", {0: before})


def test_a_script_sends_a_turn_of_a_session_to_the_engine_in_it() -> None:
    """A turn is sent with its whole prompt and the number of its new tokens.

    The script closes the session where the case does.
    """
    first = request_for(Segment("s", 9), session="a")
    turn = Request(prompt=Prompt((Segment("turn", 2),), continues=0, start=0, end=-1), session="a")
    steps = [burst(first), burst(turn), CloseSession("a", aborted=True), burst(request_for(Segment("s", 9)))]
    found = msgspec.structs.replace(case(first), workload=msgspec.to_builtins(Workload(tuple(steps))))
    assert reproduction(found) is IN_PROCESS
    closed.clear()
    story, bursts = story_of(found, "n")
    assert closed == [("a", True)]
    sent = story.prepared(bursts[0][0])
    add_answer(story, sent, [7, 8])
    then = story.prepared(bursts[1][0])
    assert tuple(then["ids"]) == tokens_of(turn, "n", {0: outcome(0, tuple(sent["ids"]), (7, 8))})
    assert then["ids"][: len(sent["ids"]) + 1] == [*sent["ids"], 7]
    assert (then["session"], then["new"]) == ("a-n", 2)


def test_what_a_server_does_not_take_runs_vllm_in_the_script() -> None:
    """A server takes rows beside token ids only in chats, and an engine in the script's process has no routes."""
    plain, rows = case(request_for(Segment("s", 9)), engine="vllm"), case(request_for(mixed((4, 9))), engine="vllm")
    assert reproduction(plain) is OPENAI
    assert reproduction(rows) is IN_PROCESS
    routed = case(request_for(Segment("s", 9), chat=True, endpoint=Endpoint.MESSAGES))
    assert reproduction(case(request_for(Segment("s", 9)))) is IN_PROCESS
    assert reproduction(routed) is OPENAI


def test_the_script_starts_a_model_with_the_flags_of_the_case() -> None:
    """The flags of the worker without a model and those of a server are left out."""
    settings = module_of(case(request_for(mixed((4, 9)))))["SETTINGS"]
    assert settings == {
        "model": "coldproof-files/model",
        "enable_prompt_embeds": True,
        "skip_tokenizer_init": True,
    }


def test_the_script_of_a_case_with_images_writes_a_model_that_takes_them() -> None:
    """The model is written with its processor, which needs the tokenizer."""
    found = msgspec.structs.replace(case(request_for(Segment("s", 9, image=Image("cat")))), cell="images")
    names = module_of(found)
    assert "write_processor" in names
    assert "image_token_id" in names["MODEL"]
    assert "skip_tokenizer_init" not in names["SETTINGS"]


def test_a_cell_whose_layers_no_model_has_keeps_the_worker() -> None:
    """The script says that it needs Coldproof."""
    found = msgspec.structs.replace(case(request_for(Segment("s", 9))), cell="groups-five-none-roomy")
    names = module_of(found)
    assert names["SETTINGS"]["worker_cls"] == "x.Y"
    assert "fingerprint worker" in " ".join(names["__doc__"].split())
