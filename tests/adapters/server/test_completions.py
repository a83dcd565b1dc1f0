"""Requests are sent in full, and answers are read in full: nothing is lost and nothing is added."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest

from coldproof.adapters.protocol.requests import (
    PLAIN,
    Abort,
    Completion,
    CompletionRequest,
    Message,
    ResponseOptions,
    Stage,
)
from coldproof.adapters.server.completions import LARGEST_GAP, SEED, TOP_LOGPROBS, Reader, body, gap, path

PROMPT = (40, 41, 42)
MESSAGES = (Message("system", "Be brief."), Message("user", "Hello."))


def request(response_options: ResponseOptions = PLAIN, **changes: Any) -> CompletionRequest:
    """Return a request for four tokens."""
    return CompletionRequest(
        **{"model": "m", "prompt": PROMPT, "max_tokens": 4, "options": response_options, **changes}
    )


def chat(response_options: ResponseOptions = PLAIN) -> CompletionRequest:
    """Return the same request as a chat."""
    return request(response_options, messages=MESSAGES)


def test_a_plain_request_is_greedy_streamed_and_sampled_to_the_end() -> None:
    """The body is compared as a whole, so that no server default can change an answer."""
    assert path(request()) == "/v1/completions"
    assert body(request()) == {
        "model": "m",
        "prompt": [40, 41, 42],
        "max_tokens": 4,
        "temperature": 0,
        "seed": SEED,
        "ignore_eos": True,
        "return_token_ids": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


@pytest.mark.parametrize(("asked", "logprobs"), [(request(), 1), (chat(), True)])
def test_names_of_tokens_are_asked_for_with_scores(asked: CompletionRequest, logprobs: object) -> None:
    """Nothing else differs, and scores that are asked for stay as they are."""
    assert body(asked, named=True) == body(asked) | {"logprobs": logprobs, "return_tokens_as_token_ids": True}
    scored = msgspec.structs.replace(asked, options=ResponseOptions(logprobs=True))
    assert body(scored, named=True) == body(scored)


def test_scores_that_only_carry_names_are_no_scores() -> None:
    """A name that is no id makes no token."""
    scores = {"tokens": ["token_id:7", "token_id:8"], "token_logprobs": [-0.5, -0.5]}
    for names, ids in ((scores["tokens"], (7, 8)), (["token_id:7", "eight"], ()), (["seven", "token_id:"], ())):
        reader = Reader(None)
        reader.expect(request())
        reader.take(json.dumps({"choices": [{"index": 0, "text": "ab", "logprobs": scores | {"tokens": names}}]}))
        answer = reader.completion()
        assert [(one.id, one.logprob) for one in answer.tokens] == [(number, None) for number in ids]


def test_a_chat_sends_its_messages_and_not_what_they_render_to() -> None:
    """The server's template is under test, so the messages are sent and not the rendered prompt."""
    said = body(chat())
    assert path(chat()) == "/v1/chat/completions"
    assert said["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello."}]
    assert "prompt" not in said
    assert said["stream"] is True


@pytest.mark.parametrize(
    ("response_options", "fields"),
    [
        (ResponseOptions(answers=3), {"n": 3, "temperature": 1, "ignore_eos": True}),
        (ResponseOptions(stop=("a", "b")), {"stop": ["a", "b"], "ignore_eos": False, "temperature": 0}),
        (ResponseOptions(pattern="[ab]"), {"structured_outputs": {"regex": "[ab]"}, "ignore_eos": False}),
        (ResponseOptions(prompt_logprobs=True), {"prompt_logprobs": 1}),
        (ResponseOptions(logprobs=True), {"logprobs": TOP_LOGPROBS, "return_tokens_as_token_ids": True}),
    ],
)
@pytest.mark.parametrize("make", [request, chat])
def test_response_options_are_sent(response_options: ResponseOptions, fields: dict[str, Any], make: Any) -> None:
    """A request has the fields of its response options and no others, on both endpoints."""
    said = body(make(response_options))
    if response_options.logprobs and make is chat:
        fields = {**fields, "logprobs": True, "top_logprobs": TOP_LOGPROBS}
    assert said.items() >= fields.items()
    special = {"n", "stop", "structured_outputs", "prompt_logprobs", "logprobs", "top_logprobs"}
    assert special & set(said) == special & set(fields)


@pytest.mark.parametrize("make", [request, chat])
def test_prompt_logprobs_are_not_streamed(make: Any) -> None:
    """vLLM does not stream prompt logprobs."""
    said = body(make(ResponseOptions(prompt_logprobs=True)))
    assert "stream" not in said
    assert "stream_options" not in said


@pytest.mark.parametrize("changes", [{"cache_salt": "red"}, {"priority": -5}])
def test_salt_and_priority_are_sent_as_they_are(changes: dict[str, Any]) -> None:
    """Without a salt or a priority the field is left out: a null or empty salt may count as a salt."""
    assert body(request(**changes)) == {**body(request()), **changes}


def test_the_server_is_not_informed_of_a_planned_disconnect() -> None:
    """The body does not mention when the client disconnects."""
    assert body(request(abort=Abort(after_tokens=3))) == body(request())


def read(*events: Any, on_token: Any = None) -> Reader:
    """Return a reader that has read these events."""
    reader = Reader(on_token)
    for event in events:
        reader.take(event if isinstance(event, str) else json.dumps(event))
    return reader


def piece(*ids: int, index: int = 0, text: str = "", **more: Any) -> dict[str, Any]:
    """Return a choice of the completions endpoint."""
    return {"index": index, "token_ids": list(ids), "text": text, **more}


def delta(*ids: int, content: str | None = "", **more: Any) -> dict[str, Any]:
    """Return a streamed choice of the chat endpoint."""
    return {"index": 0, "token_ids": list(ids), "delta": {"content": content}, **more}


def ids(completion: Completion) -> list[int]:
    """Return the token ids of the first answer."""
    return [token.id for token in completion.tokens]


def test_a_stream_is_read_event_by_event() -> None:
    """Tokens and text are in order, and the finish reason and the count may come at any time."""
    counts: list[int] = []
    reader = read(
        {"choices": [piece(7, text="a", prompt_token_ids=list(PROMPT))]},
        {"choices": [piece(8, 9, text="bc")]},
        {"choices": [piece(10, text="d", finish_reason="length")]},
        {"choices": [], "usage": {"prompt_tokens_details": {"cached_tokens": 16}}},
        on_token=counts.append,
    )
    assert not reader.done
    reader.take("[DONE]")
    got = reader.completion()
    assert (ids(got), got.text, got.finish_reason, got.cached_tokens) == ([7, 8, 9, 10], "abcd", "length", 16)
    assert (got.prompt, got.others, got.aborted) == (PROMPT, (), None)
    assert (counts, reader.done, reader.error) == ([1, 3, 4], True, None)


def test_a_chat_is_read_from_deltas() -> None:
    """The first delta only opens the message, null content is no text, and the prompt's ids are outside the choices."""
    got = read(
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}], "prompt_token_ids": [1, 2]},
        {"choices": [delta(7, content="a")]},
        {"choices": [delta(8, content=None, finish_reason="stop")]},
    ).completion()
    assert (ids(got), got.text, got.finish_reason, got.prompt) == ([7, 8], "a", "stop", (1, 2))


def test_several_answers_are_kept_apart() -> None:
    """The pieces may interleave. Count, text and finish reason are those of the first answer."""
    counts: list[int] = []
    reader = read(
        {"choices": [piece(20, index=1, text="x")]},
        {"choices": [piece(7, text="a"), piece(30, index=2)]},
        {"choices": [piece(21, index=1, finish_reason="stop"), piece(8, text="b")]},
        {"choices": [piece(31, index=2)]},
        on_token=counts.append,
    )
    got = reader.completion()
    assert (ids(got), got.text, got.finish_reason) == ([7, 8], "ab", None)
    assert [[token.id for token in other] for other in got.others] == [[20, 21], [30, 31]]
    assert counts == [1, 2]


SCORES: list[Any] = [None, {"41": {"logprob": -0.25}}, {"42": {"logprob": -2.0, "rank": 9}, "7": {"logprob": -0.1}}]


@pytest.mark.parametrize("beside", [True, False], ids=["chat", "completion"])
def test_prompt_scores_are_the_prompts_own_tokens(beside: bool) -> None:
    """Whole responses have the scores of the prompt's own tokens; a likelier token next to one is ignored."""
    about = {"prompt_token_ids": list(PROMPT), "prompt_logprobs": SCORES}
    choice = {"index": 0, "token_ids": [7], "message": {"content": "a"}, "finish_reason": "length"}
    got = read({"choices": [choice], **about} if beside else {"choices": [{**choice, **about}]}).completion()
    assert got.prompt_logprobs == (None, -0.25, -2.0)
    assert (ids(got), got.text, got.finish_reason) == ([7], "a", "length")


def test_scores_come_with_the_gap_to_the_runner_up() -> None:
    """Both endpoints' forms are read."""
    top = {"token_id:7": -0.5, "token_id:1": -2.0, "token_id:2": -9.0}
    plain = {"token_logprobs": [-0.5], "top_logprobs": [top]}
    content = [{"logprob": -0.5, "top_logprobs": [{"logprob": -0.5}, {"logprob": -2.0}]}]
    for choice in (piece(7, logprobs=plain), delta(7, logprobs={"content": content})):
        (token,) = read({"choices": [choice]}).completion().tokens
        assert (token.logprob, token.gap) == (-0.5, 1.5)


@pytest.mark.parametrize(
    "logprobs",
    [
        {"token_logprobs": [-0.1], "top_logprobs": [{"token_id:7": -0.1}]},
        {"token_logprobs": [-0.1], "top_logprobs": None},
        {"token_logprobs": [-0.1], "top_logprobs": [None]},
        {"content": [{"logprob": -0.1, "top_logprobs": []}]},
        {"content": [{"logprob": -0.1}]},
    ],
)
def test_one_score_is_no_gap(logprobs: dict[str, Any]) -> None:
    """With a single candidate the gap is unknown, which is None."""
    (token,) = read({"choices": [piece(7, logprobs=logprobs)]}).completion().tokens
    assert (token.id, token.logprob, token.gap) == (7, -0.1, None)


def test_the_gap_to_a_forbidden_runner_up_is_finite() -> None:
    """The log of a run is JSON, which has no infinity, so the gap of a forbidden runner-up is finite."""
    assert gap([-0.5, -math.inf]) == LARGEST_GAP
    assert gap([-2.0, -0.5, -3.0]) == 1.5


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens_details": None}, {"prompt_tokens_details": {}}])
def test_a_count_that_is_not_reported_is_none(usage: Any) -> None:
    """A missing count is None, not zero."""
    assert read({"choices": [], "usage": usage}).completion().cached_tokens is None


def test_without_events_nothing_is_known() -> None:
    """An aborted request without events has only its stage."""
    got = read().completion(Stage.QUEUED)
    assert got == Completion(tokens=(), finish_reason=None, cached_tokens=None, aborted=Stage.QUEUED)


@pytest.mark.parametrize(
    "event",
    [
        "<html>",
        "[]",
        "3",
        {"choices": 3},
        {"choices": [3]},
        {"choices": [piece("seven")]},  # type: ignore[arg-type]
        {"choices": [{"prompt_logprobs": SCORES}]},
        {"prompt_token_ids": [40], "prompt_logprobs": SCORES},
        {"prompt_token_ids": [1, 2, 3], "prompt_logprobs": SCORES},
        {"choices": [piece(7, logprobs={"content": [{}]})]},
        {"choices": [{"token_ids": "no"}]},
        {"choices": [{"token_ids": "12"}]},
        {"choices": [{"text": 3}]},
        {"choices": None},
    ],
    ids=lambda event: json.dumps(event)[:40],
)
def test_an_invalid_event_is_malformed_and_never_an_exception(event: Any) -> None:
    """Other servers send other forms, and scores without the prompt's ids cannot be assigned. The first such event
    is kept.
    """
    reader = read(event, "<another>")
    assert reader.malformed == (event if isinstance(event, str) else json.dumps(event))
    assert (reader.error, reader.events) == (None, 0)


def test_an_error_event_is_the_servers_word() -> None:
    """The text of the error event is kept as it was sent."""
    reader = read({"error": {"message": "boom"}})
    assert reader.error == '{"message":"boom"}'
    assert reader.malformed is None


@pytest.mark.parametrize(
    ("row", "best"),
    [
        ({"7": {"logprob": -2.0}}, None),  # the prompt's own token alone: nothing is said of any other
        ({"7": {"logprob": -2.0, "rank": 3}}, None),
        ({"7": {"logprob": -0.5, "rank": 1}}, -0.5),
        ({"7": {"logprob": -2.0}, "8": {"logprob": -0.5}}, -0.5),
        (None, None),
    ],
)
def test_the_best_score_of_a_position_is_unknown_unless_it_is_reported(row: Any, best: float | None) -> None:
    """A row with only the prompt's own token must not count as if the model preferred that token."""
    reader = Reader(None)
    reader.take(json.dumps({"prompt_token_ids": [7], "prompt_logprobs": [row], "choices": []}))
    assert reader.malformed is None
    assert reader.prompt_best == (best,)
