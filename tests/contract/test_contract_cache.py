"""What an adapter says of the cache: counts that are the engine's own, and levers that did what they say."""

from __future__ import annotations

from contract.rules import asked, by_chance, can, hold, need, new_name, refused, serve

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.protocol.engine import RequestRefused
from coldproof.adapters.protocol.requests import Completion


def room(engine: CheckedEngine) -> int:
    """A prompt of a few blocks and a bit."""
    length = 3 * (engine.shape.block_size or 16) + 40
    return min(length, engine.shape.max_model_tokens // 2)


def cached(engine: CheckedEngine, answer: Completion, length: int) -> int:
    """The count of an answer, or the broken rule."""
    told = answer.cached_tokens
    hold(told is not None, "Completion.cached_tokens", f"a count, since {Capability.CACHED_TOKENS!r} is present", told)
    assert told is not None
    hold(0 <= told < length, "Completion.cached_tokens", "of the prompt, whose last token is always computed", told)
    return told


def test_a_prompt_that_nobody_asked_hits_nothing(engine: CheckedEngine) -> None:
    """Zero where there is a count, None where there is none: missing is not zero."""
    length = room(engine)
    answer = engine.complete(asked(engine, length))
    least, most = answer.cached_between or (0, length)
    rule = "at least and at most so many: of a prompt that was never asked, none"
    hold(least == 0 <= most <= length, "Completion.cached_between", rule, answer.cached_between)
    if not can(engine, Capability.CACHED_TOKENS):
        rule = "None where the engine gives no count: missing is not zero"
        return hold(answer.cached_tokens is None, "Completion.cached_tokens", rule, answer.cached_tokens)
    told = cached(engine, answer, length)
    rule = "a prompt that was never asked has hit nothing"
    return hold(told <= by_chance(engine), "Completion.cached_tokens", rule, told)


def test_a_prompt_that_was_asked_hits(engine: CheckedEngine) -> None:
    """With the cache on, the second time is told of as a hit."""
    need(engine, Capability.CACHED_TOKENS)
    if engine.shape.prefix_caching is not True:
        return
    length = room(engine)
    request = asked(engine, length)
    first, second = (cached(engine, engine.complete(request), length) for _ in range(2))
    hold(second > first, "Completion.cached_tokens", "grows when a prompt is asked again", (first, second))


def test_without_its_cache_nothing_hits(uncached: CheckedEngine) -> None:
    """An engine that was started without it is the control of every counterexample."""
    if uncached.shape.prefix_caching is not False:
        return
    request = asked(uncached, room(uncached))
    told = [uncached.complete(request).cached_tokens for _ in range(3)]
    hold(not any(told), "Completion.cached_tokens", "with prefix caching off nothing is hit", told)


def test_counts_are_told_side_by_side_too(engine: CheckedEngine) -> None:
    """`serve` tells what `complete` tells."""
    need(engine, Capability.CACHED_TOKENS)
    length = room(engine)
    requests = [asked(engine, length) for _ in range(min(3, engine.shape.sequences or 3))]  # each is kept
    for one in requests:
        engine.complete(one)

    for served in serve(engine, *requests):
        hold(isinstance(served.result, Completion), "Engine.serve", "return what became of each", served)
        assert isinstance(served.result, Completion)
        told = cached(engine, served.result, length)
        if engine.shape.prefix_caching is True:
            hold(told > 0, "Completion.cached_tokens", "grows when a prompt is asked again", told)


def test_a_reset_that_says_so_leaves_nothing(engine: CheckedEngine) -> None:
    """True only where the engine did it; an engine without the lever refuses or says False."""
    if not can(engine, Capability.CACHE_RESET):
        try:
            done = engine.reset_cache()
        except RequestRefused:
            return
        hold(done is False, "Engine.reset_cache", "True only when the engine says that it did it", done)
        return
    request = asked(engine, room(engine))
    for _ in range(2):
        engine.complete(request)
    done, after = engine.reset_cache(), engine.complete(request).cached_tokens
    hold(done is False or not after, "Engine.reset_cache", "True only when nothing is left to hit", (done, after))


def test_a_salt_reaches_the_engine(engine: CheckedEngine) -> None:
    """One salt's blocks are hit under it, and not under another."""
    need(engine, Capability.CACHE_SALT, Capability.CACHED_TOKENS)
    if engine.shape.prefix_caching is not True:
        return
    length, red, blue = room(engine), new_name(), new_name()
    about = asked(engine, length).prompt
    told = [
        cached(engine, engine.complete(asked(engine, prompt=about, cache_salt=salt)), length)
        for salt in (red, red, blue)
    ]
    hold(told[0] == 0 and told[1] > 0, "CompletionRequest.cache_salt", "a salt hits what it computed itself", told)
    hold(told[2] == 0, "CompletionRequest.cache_salt", "a salt hits nothing of another's", told)


def test_what_is_no_capability_is_no_lever(engine: CheckedEngine) -> None:
    """An adapter switch that the engine does not have is refused."""
    if can(engine, Capability.ADAPTER_SWITCH):
        return
    with refused("Engine.switch_adapter", "without ADAPTER_SWITCH it is refused"):
        engine.switch_adapter(new_name(), "/nowhere")


def test_what_was_saved_is_there_again_once_it_is_restored(engine: CheckedEngine) -> None:
    """With as many tokens as the engine says; and nothing is restored that nobody saved."""
    need(engine, Capability.SAVED_STATE, Capability.CACHED_TOKENS)
    with refused("SavesState.restore_state", "RequestRefused for what was not saved (adapters/protocol/engine.py)"):
        engine.restore_state(new_name())
    if engine.shape.prefix_caching is not True:
        return
    length, name = room(engine), new_name()
    request, strange = asked(engine, length), asked(engine, length)
    engine.complete(request)
    saved = engine.save_state(name)
    for _ in range((engine.shape.sequences or 1) + 1):
        engine.complete(strange)
    restored, after = engine.restore_state(name), cached(engine, engine.complete(request), length)
    hold(saved >= length and restored >= length, "SavesState.save_state", "the tokens that it saved", (saved, restored))
    hold(
        after > 0,
        "SavesState.restore_state",
        "put what was saved in place of what is cached (adapters/protocol/engine.py)",
        after,
    )
