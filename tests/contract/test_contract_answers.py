"""How an adapter reports an engine's answers: as many tokens as requested, complete and with their times."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest
from contract.rules import (
    PRINTABLE,
    can,
    check,
    cold,
    fail,
    gauges_at_rest,
    ids,
    need,
    new_name,
    new_request,
    prompt,
    refused,
    still_answers,
)

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.protocol.engine import EngineDied, RequestRefused
from coldproof.adapters.protocol.requests import Abort, ResponseOptions, Stage


@pytest.mark.parametrize("tokens", [1, 5, 33])
def test_an_answer_is_as_long_as_requested(engine: CheckedEngine, tokens: int) -> None:
    """An end token of the model does not end an answer, and the finish reason is "length"."""
    answer = engine.complete(new_request(engine, tokens=tokens))
    check(len(answer.tokens) == tokens, "CompletionRequest.max_tokens", "answers are as long as requested", answer)
    check(answer.finish_reason == "length", "Completion.finish_reason", "'length' where max_tokens ended it", answer)
    check(answer.aborted is None, "Completion.aborted", "None unless the client hung up", answer)


def test_tokens_have_their_times(engine: CheckedEngine) -> None:
    """Tokens have times since the request was sent, by the engine's clock, which never decrease."""
    began = engine.clock()
    tokens = engine.complete(new_request(engine, tokens=8)).tokens
    whole = engine.clock() - began
    times = [token.at for token in tokens]
    forward = all(a <= b for a, b in itertools.pairwise([0.0, *times]))
    check(forward, "Token.at", "seconds since the request was sent, never backwards", times)
    check(times[-1] <= whole + 0.05, "Token.at", "by the engine's clock", {"at": times[-1], "until the end": whole})


def test_the_reported_prompt_is_the_one_that_was_sent(engine: CheckedEngine) -> None:
    """Where the engine reports the prompt it is the one that was sent, without an added start or end token."""
    request = new_request(engine)
    reported = engine.complete(request).prompt
    check(reported in (None, request.prompt), "Completion.prompt", "the ids that the engine says it used", reported)


def test_greedy_answers_repeat(uncached: CheckedEngine) -> None:
    """Requests are greedy: no temperature, no repetition penalty, no random seed."""
    about = prompt(40)
    answers = [cold(uncached, uncached.base_model, about, 16) for _ in range(3)]
    check(answers[0] == answers[1] == answers[2], "CompletionRequest", "a request is greedy", answers)


@pytest.mark.parametrize("place", [0, -1])
def test_another_prompt_has_another_answer(uncached: CheckedEngine, place: int) -> None:
    """The whole prompt reaches the model: its first and its last token change the answer. One pair may agree by
    chance.
    """
    alike = 0
    for _ in range(3):
        about = prompt(40)
        other = list(about)
        other[place] = PRINTABLE.start + (about[place] + 1) % len(PRINTABLE)
        base = uncached.base_model
        alike += cold(uncached, base, about, 16) == cold(uncached, base, tuple(other), 16)
    check(
        alike < 3, "CompletionRequest.prompt", f"every token counts, the one at {place} too", f"{alike} of 3 are alike"
    )


def test_many_threads_may_send_requests(engine: CheckedEngine) -> None:
    """Each concurrent request gets its own answer, identified by its length."""
    lengths = [3, 9, 5, 7]
    with ThreadPoolExecutor(len(lengths)) as pool:
        answers = list(pool.map(lambda count: engine.complete(new_request(engine, tokens=count)), lengths))
    got = [len(answer.tokens) for answer in answers]
    check(got == lengths, "Engine.complete", "may be called from many threads at once", (lengths, got))


def test_an_unknown_model_is_refused(engine: CheckedEngine) -> None:
    """An unknown model is refused and not answered by the base model."""
    with refused("Engine.complete", "RequestRefused for a model that is not served"):
        engine.complete(new_request(engine, model=new_name()))
    still_answers(engine, "an unknown model")


def test_a_prompt_too_long_has_no_answer(engine: CheckedEngine) -> None:
    """A prompt that is too long is refused, neither truncated nor left waiting.

    An engine that crashes on it has a fault that PRESS-3 reports; its adapter must then report the crash. Of a server
    that tells no limit, nothing is known.
    """
    if not engine.shape.limit_is_told:
        return
    rule = "a prompt longer than EngineShape.max_model_tokens has no answer"
    try:
        answer = engine.complete(new_request(engine, engine.shape.max_model_tokens + 1))
    except RequestRefused:
        still_answers(engine, "a prompt that was too long")
    except EngineDied:
        check(engine.alive() is False, "Engine.alive", "False where the engine has died", engine.alive())
    else:
        fail("Engine.complete", rule, answer)


def test_scores_where_there_are_some(engine: CheckedEngine) -> None:
    """The margin rule uses the gap, which is the difference of two logprobs in nats and never negative."""
    need(engine, Capability.LOGPROBS)
    tokens = engine.complete(new_request(engine, options=ResponseOptions(logprobs=True))).tokens
    scores = [(token.logprob, token.gap) for token in tokens]
    reported = all(logprob is not None and logprob <= 1e-3 for logprob, _ in scores)
    check(reported, "Token.logprob", "of the token, where scores are requested", scores)
    check(all(gap is None or gap >= 0 for _, gap in scores), "Token.gap", "top-2 gap in nats, or None", scores)


def test_scores_change_no_token(uncached: CheckedEngine) -> None:
    """Requesting scores does not change the answer."""
    need(uncached, Capability.LOGPROBS)
    about = prompt(30)
    plain = cold(uncached, uncached.base_model, about)
    salt = new_name() if can(uncached, Capability.CACHE_SALT) else None
    scored = new_request(
        uncached, prompt=about, tokens=len(plain), cache_salt=salt, options=ResponseOptions(logprobs=True)
    )
    check(ids(uncached.complete(scored)) == plain, "ResponseOptions.logprobs", "beside plain greedy tokens", plain)


def test_prompt_scores_are_complete(engine: CheckedEngine) -> None:
    """There is one score for each prompt token but the first."""
    need(engine, Capability.PROMPT_LOGPROBS)
    request = new_request(engine, options=ResponseOptions(prompt_logprobs=True))
    scores = engine.complete(request).prompt_logprobs
    whole = scores is not None and len(scores) == len(request.prompt) and scores[0] is None and None not in scores[1:]
    check(whole, "Completion.prompt_logprobs", "one for each prompt token, None for the first", scores)


def test_several_answers_where_there_are_some(engine: CheckedEngine) -> None:
    """There are as many answers as requested, each of the requested length."""
    need(engine, Capability.SEVERAL_ANSWERS)
    answer = engine.complete(new_request(engine, tokens=4, options=ResponseOptions(answers=3)))
    lengths = [len(tokens) for tokens in (answer.tokens, *answer.others)]
    check(
        lengths == [4, 4, 4], "Completion.others", "the answers after the first, where several were requested", answer
    )


def test_a_stop_string_ends_an_answer(engine: CheckedEngine) -> None:
    """The answer ends where the stop string would come, and its text goes up to there."""
    need(engine, Capability.STOP_STRINGS)
    about = prompt()
    whole = engine.complete(new_request(engine, prompt=about, tokens=12)).text
    stop = whole[4:6]
    answer = engine.complete(new_request(engine, prompt=about, tokens=12, options=ResponseOptions(stop=(stop,))))
    ended = answer.finish_reason == "stop" and stop not in answer.text and whole.startswith(answer.text)
    check(ended, "ResponseOptions.stop", "an answer ends where a stop string comes", (whole, stop, answer))


def test_no_token_arrives_after_a_disconnect_while_decoding(engine: CheckedEngine) -> None:
    """Tokens that arrived before the disconnect are reported, and the engine drops the rest of the request."""
    need(engine, Capability.ABORT)
    tokens = engine.shape.max_model_tokens // 2
    answer = engine.complete(new_request(engine, tokens=tokens, abort=Abort(after_tokens=3)))
    rule = "after so many tokens the client hangs up: no more of the answer comes"
    check(3 <= len(answer.tokens) < tokens, "Abort.after_tokens", rule, len(answer.tokens))
    check(answer.aborted is Stage.DECODE, "Completion.aborted", "how far the engine had come", answer.aborted)
    check(answer.finish_reason is None, "Completion.finish_reason", "None where the client saw no end", answer)
    if can(engine, Capability.METRICS):
        rest = gauges_at_rest(engine)
        check(not any(rest.values()), "Completion.aborted", "the engine lets go of an aborted request", rest)
    still_answers(engine, "a client that hung up")


def test_an_early_disconnect_reports_the_stage_of_the_request(engine: CheckedEngine) -> None:
    """A client that disconnects after a millisecond learns the stage that the request had reached."""
    need(engine, Capability.ABORT)
    tokens = engine.shape.max_model_tokens // 2
    answer = engine.complete(new_request(engine, 60, tokens, abort=Abort(after_ms=1)))
    check(isinstance(answer.aborted, Stage), "Completion.aborted", "the client hung up here, before the end", answer)
    check(len(answer.tokens) < tokens, "Abort.after_ms", "no more of the answer comes", len(answer.tokens))
    still_answers(engine, "a client that hung up at once")


def test_a_disconnect_in_prefill_does_not_happen_in_the_queue(engine: CheckedEngine) -> None:
    """A disconnect during prefill waits until the engine reports prefill, or comes at the first token."""
    need(engine, Capability.ABORT, Capability.METRICS)
    tokens = engine.shape.max_model_tokens // 2
    answer = engine.complete(new_request(engine, 60, tokens, abort=Abort(at=Stage.PREFILL)))
    in_time = answer.aborted in (Stage.PREFILL, Stage.DECODE) and len(answer.tokens) < tokens
    check(in_time, "Abort.at", "not before the engine says that it computes the prompt", answer)
    still_answers(engine, "a client that hung up once it had begun")


def test_an_abort_that_never_comes_due_changes_nothing(engine: CheckedEngine) -> None:
    """An answer that ends before its abort is complete."""
    need(engine, Capability.ABORT)
    answer = engine.complete(new_request(engine, tokens=4, abort=Abort(after_tokens=50)))
    whole = answer.aborted is None and len(answer.tokens) == 4 and answer.finish_reason == "length"
    check(whole, "Completion.aborted", "None where the answer ended first", answer)


def test_a_refusal_has_a_status_and_words(engine: CheckedEngine) -> None:
    """Reports print the status and the text of a refusal."""
    with pytest.raises(RequestRefused) as caught:
        engine.complete(new_request(engine, model=new_name()))
    said = caught.value.status >= 400 and bool(caught.value.body.strip())
    check(said, "RequestRefused", "an error status and what the engine says", caught.value)
