"""Updates of the weights, while nothing runs and while requests are in flight, and pauses.

After each update, the action follows for which the engine promises that nothing old is used: a reset, a pause that
clears the cache, a sleep, or another salt. What is sent before that action is not compared with cold answers, but what
it leaves in the cache must not be hit later.
"""

from __future__ import annotations

import enum

from hypothesis import strategies as st

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.resets import ResetScope
from coldproof.adapters.protocol.weights import PauseMode, SleepPart, WeightPolicy, WeightRoute
from coldproof.harness.workload.generators.leads import lead
from coldproof.harness.workload.generators.prompts import DrawnRequests, WorkloadLimits, related_prompts, stems
from coldproof.harness.workload.steps import (
    START_WEIGHTS,
    Burst,
    Change,
    Meanwhile,
    Pause,
    Prompt,
    Request,
    Reset,
    Resume,
    Route,
    Segment,
    SetAdapter,
    Sleep,
    Step,
    UpdateWeights,
    Wake,
    Workload,
)

ROUTES = {  # what comes first is drawn most: only cells that are about it have a transfer
    WeightRoute.TRANSFER: Capability.WEIGHTS_TRANSFER,
    WeightRoute.PATH: Capability.WEIGHTS_FROM_PATH,
    WeightRoute.SAME_PATH: Capability.WEIGHTS_SAME_PATH,
    WeightRoute.IN_PLACE: Capability.WEIGHTS_IN_PLACE,
}
MODES = {
    PauseMode.KEEP: Capability.PAUSE_KEEP,
    PauseMode.ABORT: Capability.PAUSE_ABORT,
    PauseMode.WAIT: Capability.PAUSE_WAIT,
}
NAMES = ("tenant", "other-tenant")
ASLEEP = "requests that arrived while the engine slept"
MANY_UPDATES = (5, 9)  # in one life
GAP_MS = 30  # long enough for a request to arrive during a pause


class Invalidation(enum.Enum):
    """What makes an engine forget KV of other weights."""

    RESET = "a reset after the update"
    PAUSE = "an update during a pause that clears the cache"
    PAUSE_AFTER = "a pause that clears the cache after the update"
    SLEEP = "a sleep before the update"
    SLEEP_AFTER = "a sleep after the update"
    DEEP_SLEEP = "an update after a sleep that discards the weights"
    SALT = "another salt"
    NOTHING = "nothing: the update itself invalidates"


def pause_modes(limits: WorkloadLimits) -> list[PauseMode]:
    """Return the modes of a pause that the engine has."""
    return [mode for mode, capability in MODES.items() if capability in limits.can]


def invalidations(limits: WorkloadLimits) -> list[Invalidation]:
    """Return the actions after which the engine promises that nothing old is used, by its policy."""
    if limits.policy is WeightPolicy.INVALIDATES:
        return [Invalidation.NOTHING]
    salts = [Invalidation.SALT] if Capability.CACHE_SALT in limits.can else []
    if limits.policy is WeightPolicy.IN_SALT:
        return salts
    resets = [Invalidation.RESET] if Capability.CACHE_RESET in limits.can else []
    pauses = [Invalidation.PAUSE, Invalidation.PAUSE_AFTER] if pause_modes(limits) else []
    sleeps = [Invalidation.SLEEP, Invalidation.SLEEP_AFTER] if Capability.SLEEP in limits.can else []
    deep = [Invalidation.DEEP_SLEEP] if Capability.SLEEP_DISCARDS in limits.can else []
    return [*resets, *pauses, *sleeps, *deep, *salts]


class UpdateBuilder:
    """The steps of a workload as they are drawn. `salt`: that of all requests since the last update, if any.

    `version`: the current version of the weights. `updates`: the number of updates so far.
    """

    def __init__(self, draw: st.DrawFn, limits: WorkloadLimits) -> None:
        self.draw, self.limits = draw, limits
        self.stem = draw(stems(limits))
        self.drawn = DrawnRequests()
        self.steps: list[Step] = []
        self.version, self.updates = START_WEIGHTS, 0
        self.salt: str | None = None
        self.visited = [START_WEIGHTS]

    def request(self, prompt: Prompt, *, adapter: str | None = None, tokens: int = 8, offset_ms: int = 0) -> Request:
        """Return a request with the current salt."""
        return self.drawn.add(
            Request(prompt=prompt, adapter=adapter, salt=self.salt, max_tokens=tokens, offset_ms=offset_ms)
        )

    def send(self, prompt: Prompt, *, adapter: str | None = None, tokens: int = 8) -> None:
        """Add one request."""
        self.steps.append(Burst(requests=(self.request(prompt, adapter=adapter, tokens=tokens),)))

    def repeat(self, adapter: str | None = None) -> None:
        """Send the stem: its blocks of other weights must not be hit."""
        self.send(Prompt((self.stem,)), adapter=adapter)

    def repeat_for(self, adapters: tuple[str, ...]) -> None:
        """Send the stem to each of these adapters and to the base model."""
        for adapter in (*adapters, None):
            self.repeat(adapter)

    def next_version(self) -> str:
        """Draw another version. The first choice is that of the start: A, B, A."""
        others = [v for v in (START_WEIGHTS, *self.limits.versions) if v != self.version]
        return self.draw(st.sampled_from(others))

    def update(self) -> UpdateWeights:
        """Draw an update to another version."""
        self.version, self.updates = self.next_version(), self.updates + 1
        self.visited.append(self.version)
        routes = [route for route, capability in ROUTES.items() if capability in self.limits.can]
        return UpdateWeights(version=self.version, route=self.draw(st.sampled_from(routes)))

    def renew_salt(self) -> None:
        """Use another salt from now on, which stands for the number of the update."""
        self.salt = f"version-{self.updates}"

    def quiet_update(self, *, stale: bool = True) -> None:
        """Add an update with its invalidation while nothing runs. `stale`: requests may be sent between the two."""
        by = self.draw(st.sampled_from(invalidations(self.limits)))
        update = self.update()
        if by is Invalidation.PAUSE:
            self.steps += [self.clearing_pause(), update, Resume()]
        elif by is Invalidation.SLEEP:
            self.steps += [Sleep(1), Wake(), update]
        elif by is Invalidation.DEEP_SLEEP:
            self.steps += [Sleep(2), Wake(SleepPart.WEIGHTS), update, Wake(SleepPart.KV)]
        else:
            self.steps.append(update)
            if stale and by is not Invalidation.NOTHING and self.draw(st.booleans()):
                self.repeat()
            self.invalidate(by)
        if by is not Invalidation.SALT:
            self.salt = None

    def invalidate(self, by: Invalidation) -> None:
        """Add what follows an update."""
        match by:
            case Invalidation.RESET:
                self.steps.append(self.reset())
            case Invalidation.PAUSE_AFTER:
                self.steps += [self.clearing_pause(), Resume()]
            case Invalidation.SLEEP_AFTER:
                self.steps += [Sleep(1), Wake()]
            case Invalidation.SALT:
                self.renew_salt()

    def reset(self) -> Reset:
        """Return a reset of all that may hold KV of the old weights. The prefix cache's own leaves a second tier."""
        return Reset((ResetScope.SECOND_TIER,) if Capability.RESET_SECOND_TIER in self.limits.can else ())

    def clearing_pause(self) -> Pause:
        """Draw a pause that clears the cache."""
        return Pause(mode=self.draw(st.sampled_from(pause_modes(self.limits))), clear=True)

    def settle(self) -> None:
        """Add an invalidation after requests were in flight over an update, if the engine has one without a pause."""
        if self.limits.policy is WeightPolicy.ON_RESET and Capability.CACHE_RESET in self.limits.can:
            self.steps.append(self.reset())
            self.salt = None
        elif self.limits.policy is not WeightPolicy.INVALIDATES:
            self.renew_salt()


@st.composite
def quiet_updates(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw two or three updates while nothing runs, rarely more, each with its invalidation, and the same prompts after
    each. The second one returns to earlier weights: A, B, A.
    """
    builder = UpdateBuilder(draw, limits)
    builder.repeat()
    for _ in range(draw(st.sampled_from(limits.sizes((2, 3, *(MANY_UPDATES if limits.rare else ())))))):
        builder.quiet_update()
        builder.repeat()
        for _ in range(draw(st.sampled_from(limits.sizes((1, 0, 2))))):
            builder.send(draw(related_prompts(limits, builder.stem, builder.drawn.latest(None))))
    return Workload(tuple(builder.steps))


@st.composite
def updates_with_adapters(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw updates under one or two loaded adapters: the same prompt to each of them and to the base model."""
    builder = UpdateBuilder(draw, limits)
    names = NAMES[: draw(st.sampled_from(limits.sizes((1, 2))))]
    for name, content in zip(names, draw(st.permutations(limits.contents)), strict=False):
        builder.steps.append(SetAdapter(name=name, content=content, path=f"files-{content}", route=Route.LOAD))
    for _ in range(draw(st.sampled_from(limits.sizes((2, 3))))):
        builder.repeat_for(names)
        builder.quiet_update(stale=False)
    builder.repeat_for(names)
    return Workload(tuple(builder.steps))


def busy_requests(builder: UpdateBuilder, *, most: int, late_ms: int = 0) -> list[Request]:
    """Draw requests that decode for a block or two, and with `late_ms` one that arrives so much later."""
    limits = builder.limits
    tokens = limits.unit + limits.unit // 2
    count = builder.draw(st.integers(1, limits.most(most, least=1)))
    busy = [builder.request(Prompt((builder.stem, Segment(f"busy {i}", 5 + i))), tokens=tokens) for i in range(count)]
    if late_ms:
        busy.append(builder.request(Prompt((builder.stem, Segment("late", 7))), tokens=8, offset_ms=late_ms))
    return busy


@st.composite
def paused(draw: st.DrawFn, limits: WorkloadLimits, *, updates: bool, clears: bool = True) -> Workload:
    """Draw pauses while requests decode, in each mode, with and without clearing (`clears`: else without it alone).

    Some begin with a sleep during which requests arrive. `updates`: with new weights.
    """
    builder = UpdateBuilder(draw, limits)
    builder.repeat()
    sleeps = clears and not updates and Capability.SLEEP in limits.can
    if sleeps and (draw(lead(limits, (ASLEEP,))) or draw(st.sampled_from((*[False] * 3, True)))):
        builder.steps += sent_while_asleep(builder)
        builder.repeat()
    for _ in range(draw(st.sampled_from(limits.sizes((2, 3))))):
        mode = draw(st.sampled_from(pause_modes(limits)))
        clear = clears and draw(st.sampled_from((True, True, False)))
        gap = draw(st.sampled_from((GAP_MS if updates else 2 * GAP_MS, 0)))  # a pause of the same length in both
        moment = draw(st.sampled_from((limits.unit // 2, 1, limits.unit)))
        # It may arrive in the pause, which begins after `moment` tokens: 10 ms for a step, and longer over HTTP.
        late = 10 * moment + draw(st.sampled_from((1, 2, 6))) * GAP_MS if gap else 0
        requests = busy_requests(builder, most=3, late_ms=late)
        middle: list[Change] = [builder.update()] if updates else []
        meanwhile = Meanwhile(
            change=Pause(mode=mode, clear=clear), after_tokens=moment, then=(*middle, Resume()), gap_ms=gap
        )
        builder.steps.append(Burst(requests=tuple(requests), meanwhile=meanwhile))
        if updates and not clear:
            builder.settle()
        builder.repeat()
    if clears and draw(st.booleans()):
        builder.steps += sent_during_a_pause(builder, update=updates)
    return Workload(tuple(builder.steps))


def sent_during_a_pause(builder: UpdateBuilder, *, update: bool) -> list[Step]:
    """Draw a pause that ends once requests were sent: they arrive during it however slow engine and client are."""
    middle: list[Change] = [builder.update()] if update else []
    first, *then = [*middle, Resume()]
    requests = busy_requests(builder, most=2)
    during = Meanwhile(change=first, after_tokens=0, then=tuple(then), gap_ms=GAP_MS)
    return [builder.clearing_pause(), Burst(requests=tuple(requests), meanwhile=during)]


def sent_while_asleep(builder: UpdateBuilder) -> list[Step]:
    """Draw a sleep, requests, and a wake-up of everything, or of one part after the other: some arrive between."""
    order = (SleepPart.WEIGHTS, SleepPart.KV)
    first, *then = builder.draw(st.sampled_from((order, order[::-1], (SleepPart.ALL,))))
    requests = busy_requests(builder, most=2, late_ms=GAP_MS if then else 0)
    during = Meanwhile(change=Wake(first), after_tokens=0, then=tuple(map(Wake, then)), gap_ms=2 * GAP_MS)
    return [Sleep(1), Burst(requests=tuple(requests), meanwhile=during)]


@st.composite
def updates_in_flight(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw updates while requests decode: without a pause, or during one that keeps them. Their next turns follow,
    under the new weights and after a return to earlier ones.

    A transfer takes several calls, between which an engine has no weights to compute with: it needs the pause
    (https://docs.vllm.ai/en/latest/training/async_rl/, "To safely update weights while the inference engine is
    running").
    """
    needs_pause = Capability.WEIGHTS_TRANSFER in limits.can
    builder = UpdateBuilder(draw, limits)
    if limits.policy is WeightPolicy.IN_SALT or (Capability.CACHE_SALT in limits.can and draw(st.booleans())):
        builder.renew_salt()
    by_salt = builder.salt is not None
    for _ in range(draw(st.sampled_from(limits.sizes((1, 2))))):
        first = len(builder.drawn.requests)
        requests = busy_requests(builder, most=2)
        keeps = Capability.PAUSE_KEEP in limits.can and (needs_pause or draw(st.booleans()))
        moments = draw(st.sampled_from((1, 2)))
        changes: list[Change] = []
        for _ in range(moments):
            update = builder.update()
            changes += [Pause(mode=PauseMode.KEEP, clear=not by_salt), update, Resume()] if keeps else [update]
        meanwhile = Meanwhile(
            change=changes[0],
            after_tokens=draw(st.sampled_from((limits.unit // 2, 1))),
            then=tuple(changes[1:]),
            gap_ms=draw(st.sampled_from((0, GAP_MS))),
        )
        builder.steps.append(Burst(requests=tuple(requests), meanwhile=meanwhile))
        settle_after_flight(builder, by_salt=by_salt, cleared=keeps and not by_salt)
        builder.send(Prompt((Segment("turn", 5),), continues=first))
        builder.steps.append(builder.update())  # back, or on to a third version
        settle_after_flight(builder, by_salt=by_salt, cleared=False)
        builder.send(Prompt((Segment("turn", 5),), continues=first))
        builder.repeat()
    return Workload(tuple(builder.steps))


def settle_after_flight(builder: UpdateBuilder, *, by_salt: bool, cleared: bool) -> None:
    """Add the invalidation after an update: another salt, or a reset unless a pause has cleared the cache."""
    if by_salt:
        builder.renew_salt()
    elif not cleared:
        builder.settle()
