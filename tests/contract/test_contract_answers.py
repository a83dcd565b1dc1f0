"""What an adapter makes of an engine's answers: as many tokens as were asked for, whole, in time, and no more."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest
from contract.rules import (
    PRINTABLE,
    asked,
    broken,
    can,
    cold,
    goes_on,
    hold,
    ids,
    need,
    new_name,
    prompt,
    refused,
    settled,
)

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.protocol.engine import EngineDied, RequestRefused
from coldproof.adapters.protocol.requests import Abort, ResponseOptions, Stage


@pytest.mark.parametrize("tokens", [1, 5, 33])
def test_an_answer_is_as_long_as_was_asked(engine: CheckedEngine, tokens: int) -> None:
    """An end token of the model's does not end it, and it says why it ended."""
    answer = engine.complete(asked(engine, tokens=tokens))
    hold(len(answer.tokens) == tokens, "CompletionRequest.max_tokens", "answers are as long as was asked", answer)
    hold(answer.finish_reason == "length", "Completion.finish_reason", "'length' where max_tokens ended it", answer)
    hold(answer.aborted is None, "Completion.aborted", "None unless the client hung up", answer)


def test_tokens_have_their_times(engine: CheckedEngine) -> None:
    """Seconds since the request was sent, one behind the other, by the engine's clock."""
    began = engine.clock()
    tokens = engine.complete(asked(engine, tokens=8)).tokens
    whole = engine.clock() - began
    times = [token.at for token in tokens]
    forward = all(a <= b for a, b in itertools.pairwise([0.0, *times]))
    hold(forward, "Token.at", "seconds since the request was sent, never backwards", times)
    hold(times[-1] <= whole + 0.05, "Token.at", "by the engine's clock", {"at": times[-1], "until the end": whole})


def test_the_prompt_is_what_was_asked(engine: CheckedEngine) -> None:
    """Token by token, where the engine tells: no end token behind it, no start token before it."""
    request = asked(engine)
    told = engine.complete(request).prompt
    hold(told in (None, request.prompt), "Completion.prompt", "the ids that the engine says it used", told)


def test_greedy_answers_repeat(uncached: CheckedEngine) -> None:
    """No temperature, no penalty for repeating, no seed of the moment."""
    about = prompt(40)
    answers = [cold(uncached, uncached.base_model, about, 16) for _ in range(3)]
    hold(answers[0] == answers[1] == answers[2], "CompletionRequest", "a request is greedy", answers)


@pytest.mark.parametrize("place", [0, -1])
def test_another_prompt_has_another_answer(uncached: CheckedEngine, place: int) -> None:
    """All of the prompt arrives: its first token matters, and so does its last. (One pair may agree by chance.)"""
    alike = 0
    for _ in range(3):
        about = prompt(40)
        other = list(about)
        other[place] = PRINTABLE.start + (about[place] + 1) % len(PRINTABLE)
        base = uncached.base_model
        alike += cold(uncached, base, about, 16) == cold(uncached, base, tuple(other), 16)
    hold(
        alike < 3, "CompletionRequest.prompt", f"every token counts, the one at {place} too", f"{alike} of 3 are alike"
    )


def test_many_threads_may_ask(engine: CheckedEngine) -> None:
    """Each gets its own answer, told by its length."""
    lengths = [3, 9, 5, 7]
    with ThreadPoolExecutor(len(lengths)) as pool:
        answers = list(pool.map(lambda count: engine.complete(asked(engine, tokens=count)), lengths))
    got = [len(answer.tokens) for answer in answers]
    hold(got == lengths, "Engine.complete", "may be called from many threads at once", (lengths, got))


def test_an_unknown_model_is_refused(engine: CheckedEngine) -> None:
    """And not answered by the base model."""
    with refused("Engine.complete", "RequestRefused for a model that is not served"):
        engine.complete(asked(engine, model=new_name()))
    goes_on(engine, "an unknown model")


def test_a_prompt_too_long_has_no_answer(engine: CheckedEngine) -> None:
    """It is refused, neither cut short nor left waiting. An engine that dies of it has a fault, which is for PRESS-3 to
    say; its adapter says that it died."""
    rule = "a prompt longer than EngineShape.max_model_tokens has no answer"
    try:
        answer = engine.complete(asked(engine, engine.shape.max_model_tokens + 1))
    except RequestRefused:
        goes_on(engine, "a prompt that was too long")
    except EngineDied:
        hold(engine.alive() is False, "Engine.alive", "False where the engine has died", engine.alive())
    else:
        broken("Engine.complete", rule, answer)


def test_scores_where_there_are_some(engine: CheckedEngine) -> None:
    """The margin rule goes by the gap, where one is told: of two logprobs, in nats, never below zero."""
    need(engine, Capability.LOGPROBS)
    tokens = engine.complete(asked(engine, surface=ResponseOptions(logprobs=True))).tokens
    scores = [(token.logprob, token.gap) for token in tokens]
    told = all(logprob is not None and logprob <= 1e-3 for logprob, _ in scores)
    hold(told, "Token.logprob", "of the token, where scores are asked for", scores)
    hold(all(gap is None or gap >= 0 for _, gap in scores), "Token.gap", "top-2 gap in nats, or None", scores)


def test_scores_change_no_token(uncached: CheckedEngine) -> None:
    """Who asks for scores is told of the same answer."""
    need(uncached, Capability.LOGPROBS)
    about = prompt(30)
    plain = cold(uncached, uncached.base_model, about)
    salt = new_name() if can(uncached, Capability.CACHE_SALT) else None
    scored = asked(uncached, prompt=about, tokens=len(plain), cache_salt=salt, surface=ResponseOptions(logprobs=True))
    hold(ids(uncached.complete(scored)) == plain, "ResponseOptions.logprobs", "beside plain greedy tokens", plain)


def test_prompt_scores_are_complete(engine: CheckedEngine) -> None:
    """One for each token, none for the first."""
    need(engine, Capability.PROMPT_LOGPROBS)
    request = asked(engine, surface=ResponseOptions(prompt_logprobs=True))
    scores = engine.complete(request).prompt_logprobs
    whole = scores is not None and len(scores) == len(request.prompt) and scores[0] is None and None not in scores[1:]
    hold(whole, "Completion.prompt_logprobs", "one for each prompt token, None for the first", scores)


def test_several_answers_where_there_are_some(engine: CheckedEngine) -> None:
    """As many as were asked for, each as long."""
    need(engine, Capability.SEVERAL_ANSWERS)
    answer = engine.complete(asked(engine, tokens=4, surface=ResponseOptions(answers=3)))
    lengths = [len(tokens) for tokens in (answer.tokens, *answer.others)]
    hold(lengths == [4, 4, 4], "Completion.others", "the answers after the first, where several were asked for", answer)


def test_a_stop_string_ends_an_answer(engine: CheckedEngine) -> None:
    """Where it would come; the text is told up to there."""
    need(engine, Capability.STOP_STRINGS)
    about = prompt()
    whole = engine.complete(asked(engine, prompt=about, tokens=12)).text
    stop = whole[4:6]
    answer = engine.complete(asked(engine, prompt=about, tokens=12, surface=ResponseOptions(stop=(stop,))))
    ended = answer.finish_reason == "stop" and stop not in answer.text and whole.startswith(answer.text)
    hold(ended, "ResponseOptions.stop", "an answer ends where a stop string comes", (whole, stop, answer))


def test_who_hangs_up_while_decoding_gets_no_more(engine: CheckedEngine) -> None:
    """What has come by then is told; the engine lets go of the rest."""
    need(engine, Capability.ABORT)
    tokens = engine.shape.max_model_tokens // 2
    answer = engine.complete(asked(engine, tokens=tokens, abort=Abort(after_tokens=3)))
    rule = "after so many tokens the client hangs up: no more of the answer comes"
    hold(3 <= len(answer.tokens) < tokens, "Abort.after_tokens", rule, len(answer.tokens))
    hold(answer.aborted is Stage.DECODE, "Completion.aborted", "how far the engine had come", answer.aborted)
    hold(answer.finish_reason is None, "Completion.finish_reason", "None where the client saw no end", answer)
    if can(engine, Capability.METRICS):
        rest = settled(engine)
        hold(not any(rest.values()), "Completion.aborted", "the engine lets go of an aborted request", rest)
    goes_on(engine, "a client that hung up")


def test_who_hangs_up_at_once_is_told_how_far_it_came(engine: CheckedEngine) -> None:
    """After a millisecond without a token, or at the first token that came sooner."""
    need(engine, Capability.ABORT)
    tokens = engine.shape.max_model_tokens // 2
    answer = engine.complete(asked(engine, 60, tokens, abort=Abort(after_ms=1)))
    hold(isinstance(answer.aborted, Stage), "Completion.aborted", "the client hung up here, before the end", answer)
    hold(len(answer.tokens) < tokens, "Abort.after_ms", "no more of the answer comes", len(answer.tokens))
    goes_on(engine, "a client that hung up at once")


def test_who_waits_for_the_beginning_does_not_hang_up_in_the_queue(engine: CheckedEngine) -> None:
    """In prefill, where the engine tells that it is there, or at the first token."""
    need(engine, Capability.ABORT, Capability.METRICS)
    tokens = engine.shape.max_model_tokens // 2
    answer = engine.complete(asked(engine, 60, tokens, abort=Abort(at=Stage.PREFILL)))
    in_time = answer.aborted in (Stage.PREFILL, Stage.DECODE) and len(answer.tokens) < tokens
    hold(in_time, "Abort.at", "not before the engine says that it computes the prompt", answer)
    goes_on(engine, "a client that hung up once it had begun")


def test_an_abort_that_never_comes_due_changes_nothing(engine: CheckedEngine) -> None:
    """An answer that ends first is an answer."""
    need(engine, Capability.ABORT)
    answer = engine.complete(asked(engine, tokens=4, abort=Abort(after_tokens=50)))
    whole = answer.aborted is None and len(answer.tokens) == 4 and answer.finish_reason == "length"
    hold(whole, "Completion.aborted", "None where the answer ended first", answer)


def test_a_refusal_has_a_status_and_words(engine: CheckedEngine) -> None:
    """A report prints them."""
    with pytest.raises(RequestRefused) as caught:
        engine.complete(asked(engine, model=new_name()))
    said = caught.value.status >= 400 and bool(caught.value.body.strip())
    hold(said, "RequestRefused", "an error status and what the engine says", caught.value)
