"""Workloads of adapter life cycles: contents under names, with traffic before, between, during and after changes."""

from __future__ import annotations

import itertools

import msgspec
from hypothesis import strategies as st

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.harness.workload.generators.guidance import guided
from coldproof.harness.workload.generators.prompts import (
    MOST_TOKENS,
    DrawnRequests,
    WorkloadLimits,
    answer_lengths,
    related_prompts,
    stems,
)
from coldproof.harness.workload.steps import (
    Burst,
    Meanwhile,
    Prompt,
    Request,
    Route,
    Segment,
    SetAdapter,
    Step,
    Unload,
    Workload,
)

SWITCHED_NAME, CHOSEN_NAME = "everybody", "tenant"

PROBE_TOKENS = 8
NAMES = ("tenant", "tenant2", "Tenant", "base-tenant", "t", "tenant/a", "0")


class AdapterLifecycle(msgspec.Struct, frozen=True, kw_only=True):
    """Which adapter life cycles to draw."""

    routes: tuple[Route, ...] = (Route.IN_PLACE,)
    same_path: bool = False
    goes_back: bool = False
    under_traffic: bool = False  # changes happen while requests run, except returns to an earlier content
    most_names: int = 2
    base_traffic: bool = True


def reload_routes(limits: WorkloadLimits) -> tuple[Route, ...]:
    """Return the routes that this engine has for another content under a loaded name, the most direct one first."""
    return (Route.IN_PLACE, Route.UNLOAD_LOAD) if Capability.LORA_IN_PLACE in limits.can else (Route.UNLOAD_LOAD,)


class WorkloadBuilder:
    """Builds a workload of adapter life cycles."""

    def __init__(self, draw: st.DrawFn, limits: WorkloadLimits, life: AdapterLifecycle) -> None:
        self.draw, self.limits, self.life = draw, limits, life
        self.steps: list[Step] = []
        self.drawn = DrawnRequests(limit=min(MOST_TOKENS, limits.longest // 2))
        self.stem = draw(stems(limits))
        self.current: dict[str, str] = {}
        # One folder for each content, or one folder name with several parents, as trainers write their last checkpoint.
        self.folders = draw(st.sampled_from(("files-{}", "run-{}/final")))
        self.past: dict[str, list[str]] = {}
        self.overlapped: list[tuple[str, str, int]] = []  # (name, content when sent, request) that a change overlapped

    def load(self, name: str) -> None:
        """Load a name for the first time."""
        self.steps.append(self.change(name, Route.LOAD))

    def change(self, name: str, route: Route) -> SetAdapter:
        """Return a step that loads another content under a name; with `goes_back`, an earlier one if there is one."""
        before = self.current.get(name)
        earlier = [c for c in self.past.get(name, ()) if c != before]
        others = [c for c in self.limits.contents if c != before]
        content = earlier[0] if self.life.goes_back and earlier else self.draw(st.sampled_from(others))
        self.current[name] = content
        self.past.setdefault(name, []).append(content)
        path = f"files-of-{name.replace('/', '_')}" if self.life.same_path else self.folders.format(content)
        return SetAdapter(name=name, content=content, path=path, route=route)

    def returns_to_earlier(self, name: str) -> bool:
        """Return whether the next change of a name loads an earlier content again."""
        return self.life.goes_back and any(c != self.current[name] for c in self.past[name])

    def add(self, prompt: Prompt, adapter: str | None, tokens: int) -> Request:
        """Return a request that the workload now contains."""
        return self.drawn.add(Request(prompt=prompt, adapter=adapter, max_tokens=tokens))

    def send(self, prompt: Prompt, adapter: str | None, tokens: int | None = None) -> None:
        """Add a burst of one request, for a drawn number of tokens if `tokens` is None."""
        tokens = self.draw(answer_lengths(self.limits)) if tokens is None else tokens
        self.steps.append(Burst(requests=(self.add(prompt, adapter, tokens),)))

    def models(self) -> list[str | None]:
        """Return the models for traffic: adapters first, then the base model if `base_traffic` is set."""
        return [*self.current, *([None] if self.life.base_traffic else [])]

    def burst(self) -> None:
        """Add one to three requests at once, in mixtures for which GROUND-1 holds."""
        models = [self.draw(st.sampled_from(self.models()))]
        for _ in range(self.draw(st.sampled_from((0, 0, 0, 1, 2)))):
            beside = [m for m in self.models() if all(self.limits.may_run_beside(other, m) for other in models)]
            models.append(self.draw(st.sampled_from(beside)))
        latest = {model: self.drawn.latest(model) for model in models}  # no request continues one of the same burst
        requests = []
        for model in models:
            prompt = self.draw(related_prompts(self.limits, self.stem, latest[model]))
            requests.append(self.add(prompt, model, self.draw(answer_lengths(self.limits))))
        self.steps.append(Burst(requests=tuple(requests)))

    def repeat(self, name: str) -> None:
        """Send the plain stem to one name: these blocks must not be hit after a change."""
        self.send(Prompt((self.stem,)), name)

    def probe(self, name: str) -> None:
        """Send a request to a name after a change.

        If an earlier change overlapped a request that was sent with the current content, continue that request: its
        answer's blocks were written with two contents and one key.
        """
        turn = Segment("turn", self.limits.unit // 2)
        room = self.limits.longest - turn.length - PROBE_TOKENS
        poisoned = [
            n
            for where, content, n in self.overlapped
            if (where, content) == (name, self.current[name]) and self.drawn.lengths[n] <= room
        ]
        if poisoned and self.draw(st.sampled_from((True, True, False))):
            self.send(Prompt((turn,), continues=poisoned[0]), name, PROBE_TOKENS)
        else:
            self.repeat(name)

    def changed_under_traffic(self, name: str, route: Route) -> None:
        """Add requests that still decode while the adapter of their name changes."""
        blocks = self.draw(st.sampled_from(self.limits.sizes((2, 1))))
        tokens = blocks * self.limits.unit + (4 if self.limits.slow else self.limits.unit // 2)
        long = [self.add(self.draw(related_prompts(self.limits, self.stem, self.drawn.latest(name))), name, tokens)]
        self.overlapped.append((name, self.current[name], len(self.drawn.requests) - 1))
        if self.draw(st.booleans()):
            long.append(self.add(Prompt((Segment("beside", 2 * self.limits.unit),)), name, tokens))
        moment = self.draw(st.sampled_from((self.limits.unit // 2, 1)))
        change = Meanwhile(change=self.change(name, route), after_tokens=moment)
        self.steps.append(Burst(requests=tuple(long), meanwhile=change))


@guided
@st.composite
def adapter_lifecycles(draw: st.DrawFn, limits: WorkloadLimits, life: AdapterLifecycle) -> Workload:
    """Draw a life cycle: load, warm up, change, send again; then more names, contents, turns and bursts."""
    builder = WorkloadBuilder(draw, limits, life)
    names = NAMES[: draw(st.integers(1, limits.most(life.most_names, least=1)))]
    for name in names:
        builder.load(name)
        builder.repeat(name)
        if limits.slow:  # there may be no burst that hits these blocks before the change
            builder.repeat(name)
    most_bursts = limits.most(1 if life.under_traffic else 2)  # a burst with a change is long enough
    for _ in range(draw(st.integers(0, most_bursts))):
        builder.burst()
    # A return takes two changes; three also return to the content between them.
    least = 2 if life.goes_back else 1
    for number in range(draw(st.integers(least, limits.most(3, least=least)))):
        first = number % len(life.routes)  # the simplest draw uses each route in turn
        name, route = draw(st.sampled_from(names)), draw(st.sampled_from(life.routes[first:] + life.routes[:first]))
        if life.under_traffic and not builder.returns_to_earlier(name):
            builder.changed_under_traffic(name, route)
        else:
            builder.steps.append(builder.change(name, route))
        builder.probe(name)
        for _ in range(draw(st.integers(0, most_bursts))):
            builder.burst()
    return Workload(tuple(builder.steps))


def reloads(limits: WorkloadLimits) -> st.SearchStrategy[Workload]:
    """Return life cycles by each route of the engine, of which some go back to an earlier content of one name."""
    forth = AdapterLifecycle(routes=reload_routes(limits))
    back = msgspec.structs.replace(forth, goes_back=True, most_names=1)
    return st.one_of(adapter_lifecycles(limits, forth), adapter_lifecycles(limits, back))


@guided
@st.composite
def coexisting_adapters(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw several adapters and the base model, with almost equal names and the same prompt; nothing changes."""
    builder = WorkloadBuilder(draw, limits, AdapterLifecycle())
    for name in draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=limits.most(4, least=2), unique=True)):
        builder.load(name)
    for model in draw(st.permutations(builder.models())):
        builder.send(Prompt((builder.stem,)), model, 8)
    for _ in range(draw(st.integers(0, limits.most(4)))):
        builder.burst()
    return Workload(tuple(builder.steps))


@guided
@st.composite
def adapter_churn(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw more adapter names than the engine has slots, used in turn, some of them replaced."""
    builder = WorkloadBuilder(draw, limits, AdapterLifecycle(base_traffic=False))
    names = [f"tenant{i}" for i in range(limits.slots + draw(st.integers(1, 2)))]
    for name in names:
        builder.load(name)
        builder.repeat(name)
    if limits.slow:  # all that follows may be one change
        builder.repeat(names[0])
    for _ in range(draw(st.integers(1, limits.most(6, least=1)))):
        name = draw(st.sampled_from(names))
        if draw(st.booleans()) is not limits.slow:  # the simplest draw of a slow model has a change
            builder.steps.append(builder.change(name, draw(st.sampled_from(reload_routes(limits)))))
        builder.repeat(name)
    return Workload(tuple(builder.steps))


@st.composite
def adapter_switches(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw an adapter that is switched on, replaced and switched off for every request, with nothing sent meanwhile.

    After each switch the same prompt is sent: with what is on now, with an adapter of its own, or to the base model.
    """
    builder = WorkloadBuilder(draw, limits, AdapterLifecycle())
    chooses = Capability.ADAPTER_CHOICE in limits.can and draw(st.booleans())
    if chooses:
        content = draw(st.sampled_from(limits.contents))
        builder.steps.append(SetAdapter(name=CHOSEN_NAME, content=content, path=f"files-{content}", route=Route.LOAD))
    on: str | None = None
    for _ in range(draw(st.integers(2, limits.most(5, least=2)))):
        on = draw(st.sampled_from([state for state in (*limits.contents, None) if state != on]))
        if on is None:
            builder.steps.append(Unload(SWITCHED_NAME))
        else:
            builder.steps.append(SetAdapter(name=SWITCHED_NAME, content=on, path=f"files-{on}", route=Route.SWITCH))
        models = [SWITCHED_NAME if on is not None else None, None, *([CHOSEN_NAME] if chooses else [])]
        for model in models[: 1 + draw(st.integers(0, len(models) - 1))]:
            builder.send(Prompt((builder.stem,)), model, draw(st.sampled_from((8, 1, limits.unit))))
    return Workload(tuple(builder.steps))


@st.composite
def mixed_bursts(draw: st.DrawFn, limits: WorkloadLimits, *, unique_salts: bool) -> Workload:
    """Draw one to three bursts for GROUND-1: any mixture, which must not change a cold engine's answers.

    `unique_salts` gives each request its own salt, where caching cannot be switched off. All requests of a burst use
    the base model, or one adapter, where the engine does not run different ones concurrently.
    """
    # Use every slot: then a base-model row that reads the last one gives a wrong answer.
    slots = limits.slots if Capability.ADAPTER_CHOICE in limits.can else 0
    names = [*NAMES, *(f"more{i}" for i in range(limits.slots))][:slots]
    mixed = Capability.MIXED_ADAPTERS in limits.can
    steps: list[Step] = [
        SetAdapter(name=name, content=content, path=f"files-{content}", route=Route.LOAD)
        for name, content in zip(names, itertools.cycle(limits.contents), strict=False)
    ]
    stem = draw(stems(limits))
    lengths = limits.sizes((24, 8, 48))  # of answers: long enough to decode concurrently for a while
    count = 0
    for _ in range(draw(st.integers(1, limits.most(3, least=1)))):
        requests = []
        models = (None, *names) if mixed else (draw(st.sampled_from((None, *names))),)
        for _ in range(draw(st.integers(2, limits.most(6, least=3)))):
            at = count % len(models) if limits.slow else 0  # the simplest draw of a slow model has a mixture
            count += 1
            requests.append(
                Request(
                    prompt=draw(related_prompts(limits, stem, None)),
                    adapter=draw(st.sampled_from(models[at:] + models[:at])),
                    salt=f"alone-{count}" if unique_salts else None,
                    max_tokens=draw(st.sampled_from(lengths)),
                )
            )
        steps.append(Burst(requests=tuple(requests)))
    return Workload(tuple(steps))
