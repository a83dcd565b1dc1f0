"""Updates of the weights, pauses, sleeps and larger resets: each does what it confirms, and nothing that it must not.

The rules are those of adapters/protocol/weights.py and resets.py. Answers are compared on the engine with its cache, so
that a rule about the cache is seen there; what must be cold has a prompt that nobody sent before, or a salt.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from contract.rules import asked, can, cold, goes_on, hold, ids, need, prompt, refused

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.protocol.engine import EngineDied
from coldproof.adapters.protocol.requests import ENGINE_ABORT, Arrival, Completion, CompletionRequest
from coldproof.adapters.protocol.resets import SCOPE_CAPABILITIES, ResetScope
from coldproof.adapters.protocol.weights import PauseMode, SleepPart, WeightRoute

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
STILL_SECONDS, STILL_CALLS = 0.3, 20  # how long nothing may happen during a pause


@contextmanager
def updated(engine: CheckedEngine, route: WeightRoute, weights: Weights) -> Iterator[None]:
    """Serve other weights in this context, and those of the start after it."""
    need(engine, Capability.SPAWNABLE, Capability.WEIGHT_UPDATES, ROUTES[route])
    start, other = weights
    try:
        engine.update_weights(str(other), route)
        yield
    finally:
        engine.update_weights(str(start), route)


def cached(engine: CheckedEngine, request: CompletionRequest) -> int:
    """How many tokens of a prompt were cached."""
    return engine.complete(request).cached_tokens or 0


def long_request(engine: CheckedEngine) -> CompletionRequest:
    """One that decodes for a while."""
    return asked(engine, 2 * (engine.shape.block_size or 16) + 5, tokens=40)


def warm_request(engine: CheckedEngine) -> CompletionRequest:
    """One whose prompt is cached now."""
    need(engine, Capability.CACHED_TOKENS)
    if engine.shape.prefix_caching is not True:
        pytest.skip("the engine has no prefix cache")
    request = asked(engine, 3 * (engine.shape.block_size or 16) + 5)
    engine.complete(request)
    hold(cached(engine, request) > 0, "Completion.cached_tokens", "a prompt that was sent before hits", request)
    return request


@pytest.mark.parametrize("route", WeightRoute)
def test_an_update_changes_the_weights_and_goes_back(
    engine: CheckedEngine, weights: Weights, route: WeightRoute
) -> None:
    """Prompts that were never sent are answered by the weights of the moment."""
    about = prompt(40)
    need(engine, Capability.WEIGHT_UPDATES, Capability.CACHE_SALT)
    before = cold(engine, engine.base_model, about)
    with updated(engine, route, weights):
        changed = cold(engine, engine.base_model, about)
    after = cold(engine, engine.base_model, about)
    hold(changed != before == after, "ChangesWeights.update_weights", "load the weights", (before, changed, after))


@pytest.mark.parametrize("route", WeightRoute)
def test_an_update_resets_no_cache(engine: CheckedEngine, weights: Weights, route: WeightRoute) -> None:
    """What invalidates is tested for itself, so an adapter adds no reset that a user would not have."""
    request = warm_request(engine)
    with updated(engine, route, weights):
        hit = cached(engine, request)
    hold(hit > 0, "ChangesWeights.update_weights", "must not reset any cache", hit)
    need(engine, Capability.CACHE_RESET)
    hold(engine.reset_cache(), "Engine.reset_cache", "an idle engine resets", "False")


@pytest.mark.parametrize("route", WeightRoute)
def test_a_checksum_is_that_of_the_weights(engine: CheckedEngine, weights: Weights, route: WeightRoute) -> None:
    """Equal for equal weights, and different for others."""
    need(engine, Capability.WEIGHT_CHECKSUM)
    before = engine.weights_checksum()
    with updated(engine, route, weights):
        changed = engine.weights_checksum()
    seen = (before, changed, engine.weights_checksum())
    rule = "a checksum of the weights that the engine computes from them"
    hold(None not in seen and seen[0] == seen[2] != seen[1], "ChangesWeights.weights_checksum", rule, seen)


@pytest.mark.parametrize("route", WeightRoute)
def test_weights_that_are_not_there_are_refused(
    engine: CheckedEngine, weights: Weights, route: WeightRoute, tmp_path: Path
) -> None:
    """The next update works. Until then, an engine may have no weights at all, or it ends (vLLM 0.32.0, its server)."""
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
    hold(
        before == after, "ChangesWeights.update_weights", "a refused update does not prevent the next", (before, after)
    )


def test_without_updates_weights_are_refused(engine: CheckedEngine) -> None:
    """And the engine goes on."""
    if can(engine, Capability.WEIGHT_UPDATES):
        return
    with refused("ChangesWeights.update_weights", "without WEIGHT_UPDATES it is refused"):
        engine.update_weights("/nowhere", WeightRoute.PATH)
    goes_on(engine, "a refused update")


class PausedRequest:
    """A request, and a pause once it has BEFORE_PAUSE tokens, which ends after a while of stillness.

    `counts`: its tokens when the pause was confirmed, and when it was about to end.
    """

    def __init__(self, engine: CheckedEngine, mode: PauseMode, *, clear: bool) -> None:
        self.engine, self.mode, self.clear = engine, mode, clear
        self.tokens, self.calls, self.since = 0, 0, 0.0
        self.counts: list[int] = []
        self.paused = self.over = False

    def run(self, request: CompletionRequest) -> Completion:
        """Serve the request, and return how it ended."""

        def on_token(_number: int, count: int) -> None:
            self.tokens = count

        try:
            (served,) = self.engine.serve([Arrival(request)], on_token, self.between)
        finally:
            if not self.over:
                self.engine.resume()
        hold(isinstance(served.result, Completion), "Pauses.pause", "a pause is no error of a request", served.result)
        assert isinstance(served.result, Completion)
        return served.result

    def between(self) -> None:
        """Pause when it is time, and resume after the stillness."""
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
        """Wait until no token arrives any more: what was sent before the confirmation comes late on a busy machine."""
        before = -1
        while before != self.tokens:
            before = self.tokens
            time.sleep(STILL_SECONDS)


@pytest.mark.parametrize("clear", [True, False])
def test_a_pause_that_keeps_requests(engine: CheckedEngine, clear: bool) -> None:
    """Nothing comes during the pause, and the answer afterwards is the one without a pause."""
    need(engine, Capability.STREAMING, Capability.PAUSE_KEEP, Capability.CACHE_SALT)
    request = long_request(engine)
    paused = PausedRequest(engine, PauseMode.KEEP, clear=clear)
    answer = paused.run(request)
    hold(paused.over, "Pauses.pause", "with KEEP the request is still there when the pause ends", paused.counts)
    rule = "nothing is computed during a pause"
    hold(paused.counts[0] == paused.counts[1] < request.max_tokens, "Pauses.pause", rule, paused.counts)
    wanted = cold(engine, engine.base_model, request.prompt, request.max_tokens)
    hold(ids(answer) == wanted, "Pauses.resume", "what was paused is continued", (ids(answer), wanted))


@pytest.mark.parametrize("clear", [True, False])
def test_a_pause_that_ends_requests(engine: CheckedEngine, clear: bool) -> None:
    """They say why they ended, and the engine goes on after the pause."""
    need(engine, Capability.STREAMING, Capability.PAUSE_ABORT)
    request = long_request(engine)
    answer = PausedRequest(engine, PauseMode.ABORT, clear=clear).run(request)
    hold(answer.finish_reason == ENGINE_ABORT, "PauseMode.ABORT", "requests end at once, and say so", answer)
    hold(len(answer.tokens) < request.max_tokens, "PauseMode.ABORT", "requests end at once", len(answer.tokens))
    goes_on(engine, "a pause")


def test_a_pause_that_waits_for_requests(engine: CheckedEngine) -> None:
    """When it is confirmed, they have ended as usual."""
    need(engine, Capability.STREAMING, Capability.PAUSE_WAIT)
    request = long_request(engine)
    paused = PausedRequest(engine, PauseMode.WAIT, clear=False)
    answer = paused.run(request)
    rule = "requests end as usual; then the pause begins"
    hold(len(answer.tokens) == request.max_tokens, "PauseMode.WAIT", rule, len(answer.tokens))
    hold(paused.counts[:1] in ([], [request.max_tokens]), "PauseMode.WAIT", rule, paused.counts)
    goes_on(engine, "a pause")


@pytest.mark.parametrize("mode", PauseMode)
def test_a_pause_clears_the_cache_only_if_it_is_told_to(engine: CheckedEngine, mode: PauseMode) -> None:
    """While nothing runs."""
    need(engine, MODES[mode])
    for clear in (False, True):
        request = warm_request(engine)
        engine.pause(mode, clear=clear)
        engine.resume()
        hit = cached(engine, request)
        hold((hit == 0) is clear, "Pauses.pause", f"`clear` is {clear}: also clear the prefix cache, or keep it", hit)


@pytest.mark.parametrize("mode", PauseMode)
def test_without_a_mode_its_pause_is_refused(engine: CheckedEngine, mode: PauseMode) -> None:
    """And the engine is not paused."""
    if can(engine, MODES[mode]):
        return
    with refused("Pauses.pause", f"without {MODES[mode]!r} it is refused"):
        engine.pause(mode, clear=False)
    goes_on(engine, "a refused pause")


@pytest.mark.parametrize("level", [0, 1])
def test_a_sleep_discards_the_cache_from_level_1_on(engine: CheckedEngine, level: int) -> None:
    """The engine answers as before after it."""
    need(engine, Capability.SLEEP, Capability.CACHE_SALT)
    request = warm_request(engine)
    before = cold(engine, engine.base_model, request.prompt)
    engine.sleep(level)
    engine.wake()
    hit = cached(engine, request)
    hold((hit == 0) is (level == 1), "Sleeps.sleep", "from level 1 on, the engine discards its KV", (level, hit))
    after = cold(engine, engine.base_model, request.prompt)
    hold(before == after, "Sleeps.wake", "wake up, and serve requests again", (before, after))


def test_a_sleep_that_discards_the_weights(engine: CheckedEngine, weights: Weights) -> None:
    """They are loaded again while the KV is still asleep."""
    need(engine, Capability.SPAWNABLE, Capability.SLEEP_DISCARDS, Capability.WEIGHTS_FROM_PATH, Capability.CACHE_SALT)
    request = warm_request(engine)
    before = cold(engine, engine.base_model, request.prompt)
    engine.sleep(2)
    engine.wake(SleepPart.WEIGHTS)
    engine.update_weights(str(weights[0]), WeightRoute.PATH)
    engine.wake(SleepPart.KV)
    hit, after = cached(engine, request), cold(engine, engine.base_model, request.prompt)
    hold(hit == 0, "Sleeps.sleep", "from level 1 on, the engine discards its KV", hit)
    hold(before == after, "Sleeps.wake", "serve requests again once everything is awake", (before, after))


@pytest.mark.parametrize(("level", "capability"), [(1, Capability.SLEEP), (2, Capability.SLEEP_DISCARDS)])
def test_without_the_capability_a_sleep_is_refused(engine: CheckedEngine, level: int, capability: Capability) -> None:
    """And the engine stays awake."""
    if can(engine, capability):
        return
    with refused("Sleeps.sleep", f"without {capability!r} it is refused"):
        engine.sleep(level)
    goes_on(engine, "a refused sleep")


def test_a_reset_of_more_leaves_nothing_to_hit(engine: CheckedEngine) -> None:
    """In the pool, or in what it covers besides: then a prompt that was cached is computed again."""
    scopes = [scope for scope, capability in SCOPE_CAPABILITIES.items() if can(engine, capability)]
    for scope in scopes:
        request = warm_request(engine)
        done, hit = engine.reset_more((scope,)), cached(engine, request)
        rule = "True only if the engine confirms an empty prefix cache and a reset of everything in `scope`"
        in_tier = scope is not ResetScope.SECOND_TIER and can(engine, Capability.SECOND_TIER)
        hold(not done or in_tier or hit == 0, "ResetsMore.reset_more", rule, (scope, done, hit))


def test_a_reset_of_running_requests_lets_them_go_on(engine: CheckedEngine) -> None:
    """From their tokens: their KV is discarded, and the answer is the one without a reset."""
    need(engine, Capability.RESET_RUNNING, Capability.STREAMING, Capability.CACHE_SALT)
    request, confirmed = long_request(engine), []
    seen = during(engine, request, lambda: confirmed.append(engine.reset_more((ResetScope.RUNNING,))))
    hold(confirmed == [True], "ResetsMore.reset_more", "a reset that includes running requests succeeds", confirmed)
    wanted = cold(engine, engine.base_model, request.prompt, request.max_tokens)
    hold(ids(seen) == wanted, "ResetsMore.reset_more", "they continue from their tokens", (ids(seen), wanted))


@pytest.mark.parametrize("scope", ResetScope)
def test_a_scope_that_an_engine_lacks_is_not_confirmed(engine: CheckedEngine, scope: ResetScope) -> None:
    """It is refused, or False is returned: nobody may take it for done."""
    if can(engine, SCOPE_CAPABILITIES[scope]):
        return
    with refused("ResetsMore.reset_more", f"without {SCOPE_CAPABILITIES[scope]!r} it is refused"):
        engine.reset_more((scope,))


def during(engine: CheckedEngine, request: CompletionRequest, act: Callable[[], object]) -> Completion:
    """Serve a request, and act once when it has BEFORE_PAUSE tokens."""
    counts, done = [0], []

    def between() -> None:
        if counts[0] >= BEFORE_PAUSE and not done:
            done.append(act())

    def on_token(_number: int, count: int) -> None:
        counts[0] = count

    (served,) = engine.serve([Arrival(request)], on_token, between)
    hold(isinstance(served.result, Completion), "Engine.serve", "the request is answered", served.result)
    assert isinstance(served.result, Completion)
    return served.result
