"""Weight updates, pauses, sleeps and larger resets: each does what it confirms, and nothing else.

The rules are those of adapters/protocol/weights.py and resets.py. Answers are compared on the engine with its cache,
so that rules about the cache are tested there. Cold answers have a new prompt or a new salt.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from contract.rules import can, check, cold, followed, ids, need, new_request, prompt, refused, still_answers

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.protocol.engine import EngineDied
from coldproof.adapters.protocol.requests import ENGINE_ABORT, Arrival, Completion, CompletionRequest
from coldproof.adapters.protocol.resets import SCOPE_CAPABILITIES, ResetScope
from coldproof.adapters.protocol.weights import PauseMode, SleepPart, WeightPolicy, WeightRoute, flush_with_updates

Weights = tuple[Path, Path]  # those of the start, and others
ROUTES = {
    WeightRoute.PATH: Capability.WEIGHTS_FROM_PATH,
    WeightRoute.SAME_PATH: Capability.WEIGHTS_SAME_PATH,
    WeightRoute.IN_PLACE: Capability.WEIGHTS_IN_PLACE,
    WeightRoute.TRANSFER: Capability.WEIGHTS_TRANSFER,
}
MODES = {
    PauseMode.ABORT: Capability.PAUSE_ABORT,
    PauseMode.WAIT: Capability.PAUSE_WAIT,
    PauseMode.KEEP: Capability.PAUSE_KEEP,
}
BEFORE_PAUSE = 4  # tokens that a request has when it is paused
LENGTHS = (40, 160, 640)  # tokens of an answer: on a busy machine a short one ends before its pause begins
STILL_SECONDS, STILL_CALLS = 0.3, 20  # how long nothing may happen during a pause


@contextmanager
def updated(engine: CheckedEngine, route: WeightRoute, weights: Weights) -> Iterator[None]:
    """Serve other weights in this context, and the weights of the start after it."""
    need(engine, Capability.SPAWNABLE, Capability.WEIGHT_UPDATES, ROUTES[route])
    start, other = weights
    try:
        engine.update_weights(str(other), route)
        yield
    finally:
        engine.update_weights(str(start), route)


def cached(engine: CheckedEngine, request: CompletionRequest) -> int:
    """Return the number of cached tokens of a request whose prompt goes on behind another one's."""
    return engine.complete(followed(request)).cached_tokens or 0


def long_request(engine: CheckedEngine, tokens: int = LENGTHS[0]) -> CompletionRequest:
    """Return a request that decodes for a while."""
    length = 2 * (engine.shape.block_size or 16) + 5
    return new_request(engine, length, tokens=min(tokens, engine.shape.max_model_tokens - length))


def warm_request(engine: CheckedEngine) -> CompletionRequest:
    """Return a request whose prompt is cached now."""
    need(engine, Capability.CACHED_TOKENS)
    if engine.shape.prefix_caching is not True:
        pytest.skip("the engine has no prefix cache")
    request = new_request(engine, 3 * (engine.shape.block_size or 16) + 5)
    engine.complete(request)
    check(cached(engine, request) > 0, "Completion.cached_tokens", "a prompt that was sent before hits", request)
    return request


@pytest.mark.parametrize("route", WeightRoute)
def test_an_update_changes_the_weights_and_goes_back(
    engine: CheckedEngine, weights: Weights, route: WeightRoute
) -> None:
    """New prompts are answered by the weights that are loaded at that time."""
    about = prompt(40)
    need(engine, Capability.WEIGHT_UPDATES, Capability.CACHE_SALT)
    before = cold(engine, engine.base_model, about)
    with updated(engine, route, weights):
        changed = cold(engine, engine.base_model, about)
    after = cold(engine, engine.base_model, about)
    check(changed != before == after, "ChangesWeights.update_weights", "load the weights", (before, changed, after))


@pytest.mark.parametrize("route", WeightRoute)
def test_an_update_resets_no_cache(engine: CheckedEngine, weights: Weights, route: WeightRoute) -> None:
    """An update resets no cache: stale KV is what the suites test, so an adapter must not add a reset of its own. One
    whose engine's updates clear the cache leaves that out where another promise is tested.
    """
    request = warm_request(engine)
    try:
        flush_with_updates(engine.engine, WeightPolicy.ON_RESET)
        with updated(engine, route, weights):
            hit = cached(engine, request)
    finally:
        flush_with_updates(engine.engine, WeightPolicy.INVALIDATES)
    check(hit > 0, "ChangesWeights.update_weights", "must not reset any cache", hit)
    need(engine, Capability.CACHE_RESET)
    check(engine.reset_cache(), "Engine.reset_cache", "an idle engine resets", "False")


@pytest.mark.parametrize("route", WeightRoute)
def test_a_checksum_is_that_of_the_weights(engine: CheckedEngine, weights: Weights, route: WeightRoute) -> None:
    """Checksums are equal for equal weights, and different for others."""
    need(engine, Capability.WEIGHT_CHECKSUM)
    before = engine.weights_checksum()
    with updated(engine, route, weights):
        changed = engine.weights_checksum()
    seen = (before, changed, engine.weights_checksum())
    rule = "a checksum of the weights that the engine computes from them"
    check(None not in seen and seen[0] == seen[2] != seen[1], "ChangesWeights.weights_checksum", rule, seen)


@pytest.mark.parametrize("route", WeightRoute)
def test_weights_that_are_not_there_are_refused(
    engine: CheckedEngine, weights: Weights, route: WeightRoute, tmp_path: Path
) -> None:
    """The next update works after a refused one. Until then an engine may have no weights, or terminates (vLLM
    0.32.0's server).
    """
    need(engine, Capability.SPAWNABLE, Capability.WEIGHT_UPDATES, ROUTES[route], Capability.CACHE_SALT)
    about = prompt(40)
    before = cold(engine, engine.base_model, about)
    try:
        with refused("ChangesWeights.update_weights", "RequestRefused for a folder without weights"):
            engine.update_weights(str(tmp_path), route)
    finally:
        try:
            engine.update_weights(str(weights[0]), route)
        except EngineDied:
            engine.stop()  # of a server, whose other processes may still run
    if not engine.alive():
        return
    after = cold(engine, engine.base_model, about)
    check(
        before == after, "ChangesWeights.update_weights", "a refused update does not prevent the next", (before, after)
    )


def test_without_updates_weights_are_refused(engine: CheckedEngine) -> None:
    """Without WEIGHT_UPDATES an update is refused, and the engine still answers."""
    if can(engine, Capability.WEIGHT_UPDATES):
        return
    with refused("ChangesWeights.update_weights", "without WEIGHT_UPDATES it is refused"):
        engine.update_weights("/nowhere", WeightRoute.PATH)
    still_answers(engine, "a refused update")


class PausedRequest:
    """A request that is paused once it has BEFORE_PAUSE tokens, and resumed after a while.

    `counts`: its tokens when the pause was confirmed, and before it ended.
    """

    def __init__(self, engine: CheckedEngine, mode: PauseMode, *, clear: bool) -> None:
        self.engine, self.mode, self.clear = engine, mode, clear
        self.tokens, self.calls, self.since = 0, 0, 0.0
        self.counts: list[int] = []
        self.paused = self.over = False

    def run(self, request: CompletionRequest) -> Completion:
        """Serve the request and return its answer."""

        def on_token(_number: int, count: int) -> None:
            self.tokens = count

        try:
            (served,) = self.engine.serve([Arrival(request)], on_token, self.between)
        finally:
            if not self.over:
                self.engine.resume()
        check(isinstance(served.result, Completion), "Pauses.pause", "a pause is no error of a request", served.result)
        assert isinstance(served.result, Completion)
        return served.result

    def between(self) -> None:
        """Pause when the request has enough tokens, and resume after the waiting time."""
        if not self.paused and self.tokens >= BEFORE_PAUSE:
            self.engine.pause(self.mode, clear=self.clear)
            self.rest()
            self.paused, self.since, self.counts = True, time.monotonic(), [self.tokens]
        elif self.paused and not self.over:
            self.calls += 1
            if self.calls >= STILL_CALLS and time.monotonic() - self.since > STILL_SECONDS:
                self.counts.append(self.tokens)
                self.engine.resume()
                self.over = True

    def rest(self) -> None:
        """Wait until no more tokens arrive: on a busy machine, tokens sent before the confirmation arrive late."""
        before = -1
        while before != self.tokens:
            before = self.tokens
            time.sleep(STILL_SECONDS)


def paused_within(
    engine: CheckedEngine, mode: PauseMode, *, clear: bool
) -> tuple[CompletionRequest, PausedRequest, Completion]:
    """Pause a request within its answer. One that had all tokens when the pause began is repeated with a longer one."""
    for tokens in LENGTHS:
        request, paused = long_request(engine, tokens), PausedRequest(engine, mode, clear=clear)
        answer = paused.run(request)
        if paused.counts[:1] not in ([], [request.max_tokens]):
            break
    return request, paused, answer


@pytest.mark.parametrize("clear", [True, False])
def test_a_pause_that_keeps_requests(engine: CheckedEngine, clear: bool) -> None:
    """No token arrives during the pause, and the answer is the one without a pause."""
    need(engine, Capability.STREAMING, Capability.PAUSE_KEEP, Capability.CACHE_SALT)
    request, paused, answer = paused_within(engine, PauseMode.KEEP, clear=clear)
    check(paused.over, "Pauses.pause", "with KEEP the request is still there when the pause ends", paused.counts)
    rule = "nothing is computed during a pause"
    check(paused.counts[0] == paused.counts[1] < request.max_tokens, "Pauses.pause", rule, paused.counts)
    expected = cold(engine, engine.base_model, request.prompt, request.max_tokens)
    check(ids(answer) == expected, "Pauses.resume", "what was paused is continued", (ids(answer), expected))


@pytest.mark.parametrize("clear", [True, False])
def test_a_pause_that_ends_requests(engine: CheckedEngine, clear: bool) -> None:
    """Requests report that the engine aborted them, and the engine still answers after the pause."""
    need(engine, Capability.STREAMING, Capability.PAUSE_ABORT)
    request, _, answer = paused_within(engine, PauseMode.ABORT, clear=clear)
    check(answer.finish_reason == ENGINE_ABORT, "PauseMode.ABORT", "requests end at once, and say so", answer)
    check(len(answer.tokens) < request.max_tokens, "PauseMode.ABORT", "requests end at once", len(answer.tokens))
    still_answers(engine, "a pause")


def test_a_pause_that_waits_for_requests(engine: CheckedEngine) -> None:
    """Once the pause is confirmed, the running requests have ended normally."""
    need(engine, Capability.STREAMING, Capability.PAUSE_WAIT)
    request = long_request(engine)
    paused = PausedRequest(engine, PauseMode.WAIT, clear=False)
    answer = paused.run(request)
    rule = "requests end as usual; then the pause begins"
    check(len(answer.tokens) == request.max_tokens, "PauseMode.WAIT", rule, len(answer.tokens))
    check(paused.counts[:1] in ([], [request.max_tokens]), "PauseMode.WAIT", rule, paused.counts)
    still_answers(engine, "a pause")


@pytest.mark.parametrize("mode", PauseMode)
def test_a_pause_clears_the_cache_only_on_request(engine: CheckedEngine, mode: PauseMode) -> None:
    """A pause of an idle engine clears the cache exactly if `clear` is set."""
    need(engine, MODES[mode])
    for clear in (False, True):
        request = warm_request(engine)
        engine.pause(mode, clear=clear)
        engine.resume()
        hit = cached(engine, request)
        check((hit == 0) is clear, "Pauses.pause", f"`clear` is {clear}: also clear the prefix cache, or keep it", hit)


@pytest.mark.parametrize("mode", PauseMode)
def test_without_a_mode_its_pause_is_refused(engine: CheckedEngine, mode: PauseMode) -> None:
    """A pause with an unsupported mode is refused, and the engine is not paused."""
    if can(engine, MODES[mode]):
        return
    with refused("Pauses.pause", f"without {MODES[mode]!r} it is refused"):
        engine.pause(mode, clear=False)
    still_answers(engine, "a refused pause")


@pytest.mark.parametrize("level", [0, 1])
def test_a_sleep_discards_the_cache_from_level_1_on(engine: CheckedEngine, level: int) -> None:
    """Level 1 discards the cache, level 0 keeps it, and the answers after the sleep are the same."""
    need(engine, Capability.SLEEP, Capability.CACHE_SALT)
    request = warm_request(engine)
    before = cold(engine, engine.base_model, request.prompt)
    engine.sleep(level)
    engine.wake()
    hit = cached(engine, request)
    check((hit == 0) is (level == 1), "Sleeps.sleep", "from level 1 on, the engine discards its KV", (level, hit))
    after = cold(engine, engine.base_model, request.prompt)
    check(before == after, "Sleeps.wake", "wake up, and serve requests again", (before, after))


def test_a_sleep_that_discards_the_weights(engine: CheckedEngine, weights: Weights) -> None:
    """Weights are loaded again while the KV is still asleep, and the engine answers as before."""
    need(engine, Capability.SPAWNABLE, Capability.SLEEP_DISCARDS, Capability.WEIGHTS_FROM_PATH, Capability.CACHE_SALT)
    request = warm_request(engine)
    before = cold(engine, engine.base_model, request.prompt)
    engine.sleep(2)
    engine.wake(SleepPart.WEIGHTS)
    engine.update_weights(str(weights[0]), WeightRoute.PATH)
    engine.wake(SleepPart.KV)
    hit, after = cached(engine, request), cold(engine, engine.base_model, request.prompt)
    check(hit == 0, "Sleeps.sleep", "from level 1 on, the engine discards its KV", hit)
    check(before == after, "Sleeps.wake", "serve requests again once everything is awake", (before, after))


@pytest.mark.parametrize(("level", "capability"), [(1, Capability.SLEEP), (2, Capability.SLEEP_DISCARDS)])
def test_without_the_capability_a_sleep_is_refused(engine: CheckedEngine, level: int, capability: Capability) -> None:
    """An unsupported sleep is refused, and the engine stays awake."""
    if can(engine, capability):
        return
    with refused("Sleeps.sleep", f"without {capability!r} it is refused"):
        engine.sleep(level)
    still_answers(engine, "a refused sleep")


def test_a_reset_of_more_leaves_nothing_to_hit(engine: CheckedEngine) -> None:
    """After a confirmed reset a prompt that was cached is computed again."""
    scopes = [scope for scope, capability in SCOPE_CAPABILITIES.items() if can(engine, capability)]
    for scope in scopes:
        request = warm_request(engine)
        done, hit = engine.reset_more((scope,)), cached(engine, request)
        rule = "True only if the engine confirms an empty prefix cache and a reset of everything in `scope`"
        in_tier = scope is not ResetScope.SECOND_TIER and can(engine, Capability.SECOND_TIER)
        check(not done or in_tier or hit == 0, "ResetsMore.reset_more", rule, (scope, done, hit))


def test_a_reset_of_running_requests_lets_them_go_on(engine: CheckedEngine) -> None:
    """Running requests continue from their tokens after a reset, and the answer is the one without a reset."""
    need(engine, Capability.RESET_RUNNING, Capability.STREAMING, Capability.CACHE_SALT)
    request, confirmed = long_request(engine), []
    seen = during(engine, request, lambda: confirmed.append(engine.reset_more((ResetScope.RUNNING,))))
    check(confirmed == [True], "ResetsMore.reset_more", "a reset that includes running requests succeeds", confirmed)
    expected = cold(engine, engine.base_model, request.prompt, request.max_tokens)
    check(ids(seen) == expected, "ResetsMore.reset_more", "they continue from their tokens", (ids(seen), expected))


@pytest.mark.parametrize("scope", ResetScope)
def test_a_scope_that_an_engine_lacks_is_not_confirmed(engine: CheckedEngine, scope: ResetScope) -> None:
    """A reset with an unsupported scope is refused, so that nobody takes it for done."""
    if can(engine, SCOPE_CAPABILITIES[scope]):
        return
    with refused("ResetsMore.reset_more", f"without {SCOPE_CAPABILITIES[scope]!r} it is refused"):
        engine.reset_more((scope,))


def during(engine: CheckedEngine, request: CompletionRequest, act: Callable[[], object]) -> Completion:
    """Serve a request, and call `act` once when it has BEFORE_PAUSE tokens."""
    counts, done = [0], []

    def between() -> None:
        if counts[0] >= BEFORE_PAUSE and not done:
            done.append(act())

    def on_token(_number: int, count: int) -> None:
        counts[0] = count

    (served,) = engine.serve([Arrival(request)], on_token, between)
    check(isinstance(served.result, Completion), "Engine.serve", "the request is answered", served.result)
    assert isinstance(served.result, Completion)
    return served.result
