"""How an adapter reports the cache: counts come from the engine, and controls did what they confirm."""

from __future__ import annotations

from contract.rules import MORE, can, chance_hits, check, followed, need, new_name, new_request, refused, serve

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.protocol.engine import RequestRefused
from coldproof.adapters.protocol.requests import Completion


def prompt_length(engine: CheckedEngine) -> int:
    """Return the length of a prompt of a few blocks and a partial one."""
    length = 3 * (engine.shape.block_size or 16) + 40
    return min(length, engine.shape.max_model_tokens // 2)


def cached(engine: CheckedEngine, answer: Completion, length: int) -> int:
    """Return the cached tokens of an answer. Fail if there is no count or an impossible one."""
    reported = answer.cached_tokens
    check(
        reported is not None,
        "Completion.cached_tokens",
        f"a count, since {Capability.CACHED_TOKENS!r} is present",
        reported,
    )
    assert reported is not None
    check(
        0 <= reported < length,
        "Completion.cached_tokens",
        "of the prompt, whose last token is always computed",
        reported,
    )
    return reported


def test_a_new_prompt_hits_nothing(engine: CheckedEngine) -> None:
    """A new prompt hits nothing. The count is 0 if the engine reports one and None if not: missing is not zero."""
    length = prompt_length(engine)
    answer = engine.complete(new_request(engine, length))
    least, most = answer.cached_between or (0, length)
    rule = "at least and at most so many: of a prompt that was never sent, none"
    check(least == 0 <= most <= length, "Completion.cached_between", rule, answer.cached_between)
    if not can(engine, Capability.CACHED_TOKENS):
        rule = "None where the engine gives no count: missing is not zero"
        return check(answer.cached_tokens is None, "Completion.cached_tokens", rule, answer.cached_tokens)
    reported = cached(engine, answer, length)
    rule = "a prompt that was never sent hits nothing"
    return check(reported <= chance_hits(engine), "Completion.cached_tokens", rule, reported)


def test_a_prompt_that_was_sent_before_hits(engine: CheckedEngine) -> None:
    """With the cache on, a prompt that begins with one that was sent before is reported as a hit."""
    need(engine, Capability.CACHED_TOKENS)
    if engine.shape.prefix_caching is not True:
        return
    length = prompt_length(engine)
    request = new_request(engine, length)
    first = cached(engine, engine.complete(request), length)
    second = cached(engine, engine.complete(followed(request)), length + MORE)
    check(second > first, "Completion.cached_tokens", "grows when a prompt is repeated and goes on", (first, second))


def test_without_its_cache_nothing_hits(uncached: CheckedEngine) -> None:
    """An engine without its cache is the control of every counterexample, so it must never hit."""
    if uncached.shape.prefix_caching is not False:
        return
    request = new_request(uncached, prompt_length(uncached))
    reported = [uncached.complete(request).cached_tokens for _ in range(3)]
    check(not any(reported), "Completion.cached_tokens", "with prefix caching off nothing is hit", reported)


def test_counts_are_reported_side_by_side_too(engine: CheckedEngine) -> None:
    """`serve` reports the same counts as `complete`."""
    need(engine, Capability.CACHED_TOKENS)
    length = prompt_length(engine)
    requests = [new_request(engine, length) for _ in range(min(3, engine.shape.sequences or 3))]  # each is kept
    for one in requests:
        engine.complete(one)

    for served in serve(engine, *map(followed, requests)):
        check(isinstance(served.result, Completion), "Engine.serve", "return what became of each", served)
        assert isinstance(served.result, Completion)
        reported = cached(engine, served.result, length + MORE)
        if engine.shape.prefix_caching is True:
            check(reported > 0, "Completion.cached_tokens", "grows when a prompt is repeated and goes on", reported)


def test_a_confirmed_reset_leaves_nothing(engine: CheckedEngine) -> None:
    """A reset returns True only if the engine did it. Without the capability it is refused or returns False."""
    if not can(engine, Capability.CACHE_RESET):
        try:
            done = engine.reset_cache()
        except RequestRefused:
            return
        check(done is False, "Engine.reset_cache", "True only when the engine says that it did it", done)
        return
    request = new_request(engine, prompt_length(engine))
    for _ in range(2):
        engine.complete(request)
    done, after = engine.reset_cache(), engine.complete(request).cached_tokens
    check(done is False or not after, "Engine.reset_cache", "True only when nothing is left to hit", (done, after))


def test_a_salt_reaches_the_engine(engine: CheckedEngine) -> None:
    """Blocks that were written under a salt hit under that salt, and not under another."""
    need(engine, Capability.CACHE_SALT, Capability.CACHED_TOKENS)
    if engine.shape.prefix_caching is not True:
        return
    length, red, blue = prompt_length(engine), new_name(), new_name()
    about = new_request(engine, length).prompt
    reported = [
        cached(engine, engine.complete(new_request(engine, prompt=about, cache_salt=salt)), length)
        for salt in (red, red, blue)
    ]
    check(
        reported[0] == 0 and reported[1] > 0,
        "CompletionRequest.cache_salt",
        "a salt hits what it computed itself",
        reported,
    )
    check(reported[2] == 0, "CompletionRequest.cache_salt", "a salt hits nothing of another's", reported)


def test_a_control_without_its_capability_is_refused(engine: CheckedEngine) -> None:
    """An engine without the adapter switch refuses it."""
    if can(engine, Capability.ADAPTER_SWITCH):
        return
    with refused("Engine.switch_adapter", "without ADAPTER_SWITCH it is refused"):
        engine.switch_adapter(new_name(), "/nowhere")


def test_what_was_saved_is_there_again_once_it_is_restored(engine: CheckedEngine) -> None:
    """A restored state hits as many tokens as the engine reports. A state that was never saved cannot be restored."""
    need(engine, Capability.SAVED_STATE, Capability.CACHED_TOKENS)
    with refused("SavesState.restore_state", "RequestRefused for what was not saved (adapters/protocol/engine.py)"):
        engine.restore_state(new_name())
    if engine.shape.prefix_caching is not True:
        return
    length, name = prompt_length(engine), new_name()
    request, strange = new_request(engine, length), new_request(engine, length)
    engine.complete(request)
    saved = engine.save_state(name)
    for _ in range((engine.shape.sequences or 1) + 1):
        engine.complete(strange)
    restored, after = engine.restore_state(name), cached(engine, engine.complete(request), length)
    check(
        saved >= length and restored >= length, "SavesState.save_state", "the tokens that it saved", (saved, restored)
    )
    check(
        after > 0,
        "SavesState.restore_state",
        "put what was saved in place of what is cached (adapters/protocol/engine.py)",
        after,
    )
