"""Whole workloads of adapter life cycles: contents behind names, traffic before, between, during and after changes."""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st

from adapters.base import Capability
from harness.generators.prompts import (
    ADAPTERS_TOGETHER,
    BASE_WITH_ADAPTER,
    MOST_TOKENS,
    Grounds,
    Talk,
    answers_lengths,
    related_prompts,
    stems,
)
from harness.workload import Burst, Meanwhile, Prompt, Request, Route, Segment, SetAdapter, Step, Workload

PROBED_TOKENS = 8
NAMES = ("tenant", "tenant2", "Tenant", "base-tenant", "t", "tenant/a", "0")


class Life(msgspec.Struct, frozen=True, kw_only=True):
    """Which adapter life cycles to draw. Everything that a requirement is not about stays the same."""

    routes: tuple[Route, ...] = (Route.IN_PLACE,)
    same_path: bool = False
    goes_back: bool = False
    under_traffic: bool = False  # changes happen while requests run; coming back to an earlier content does not
    most_names: int = 2
    base_traffic: bool = True


def reloads(grounds: Grounds) -> tuple[Route, ...]:
    """The routes that this engine has for another content behind a loaded name, the most direct one first."""
    return (Route.IN_PLACE, Route.UNLOAD_LOAD) if Capability.LORA_IN_PLACE in grounds.can else (Route.UNLOAD_LOAD,)


class Stage:
    """A workload in the making."""

    def __init__(self, draw: st.DrawFn, grounds: Grounds, life: Life) -> None:
        self.draw, self.grounds, self.life = draw, grounds, life
        self.steps: list[Step] = []
        self.talk = Talk(limit=min(MOST_TOKENS, grounds.longest // 2))
        self.stem = draw(stems(grounds))
        self.behind: dict[str, str] = {}
        # A folder for each content; or one folder's name in several places, as trainers write their last checkpoint.
        self.folders = draw(st.sampled_from(("files-{}", "run-{}/final")))
        self.past: dict[str, list[str]] = {}
        self.overtaken: list[tuple[str, str, int]] = []  # (name, content when sent, request) that a change overlapped

    def load(self, name: str) -> None:
        """First load of a name."""
        self.steps.append(self.change(name, Route.LOAD))

    def change(self, name: str, route: Route) -> SetAdapter:
        """Put another content behind a name: an earlier one when the story goes back, else any but the present one."""
        before = self.behind.get(name)
        earlier = [c for c in self.past.get(name, ()) if c != before]
        fresh = [c for c in self.grounds.contents if c != before]
        content = earlier[0] if self.life.goes_back and earlier else self.draw(st.sampled_from(fresh))
        self.behind[name] = content
        self.past.setdefault(name, []).append(content)
        path = f"files-of-{name.replace('/', '_')}" if self.life.same_path else self.folders.format(content)
        return SetAdapter(name=name, content=content, path=path, route=route)

    def comes_back(self, name: str) -> bool:
        """Whether the next change of a name brings an earlier content back."""
        return self.life.goes_back and any(c != self.behind[name] for c in self.past[name])

    def request(self, adapter: str | None, *, tokens: int | None = None) -> Request:
        """A request that has much in common with the others."""
        prompt = self.draw(related_prompts(self.grounds, self.stem, self.talk.latest(adapter)))
        length = tokens if tokens is not None else self.draw(answers_lengths(self.grounds))
        return self.talk.add(Request(prompt=prompt, adapter=adapter, max_tokens=length))

    def models(self) -> list[str | None]:
        """Whom traffic may go to: adapters first, the base model where the requirement wants it between them."""
        return [*self.behind, *([None] if self.life.base_traffic else [])]

    def burst(self) -> None:
        """One to three requests at once, in mixtures that the ground rule holds for."""
        asked = [self.draw(st.sampled_from(self.models()))]
        for _ in range(self.draw(st.sampled_from((0, 0, 0, 1, 2)))):
            beside = [m for m in self.models() if all(self.may_run_beside(other, m) for other in asked)]
            asked.append(self.draw(st.sampled_from(beside)))
        waiting = self.talk.requests[:]
        lengths = self.talk.lengths[:]
        requests = []
        for model in asked:
            # Nobody in a burst can go on from an answer of the same burst.
            here = Talk(limit=self.talk.limit)
            here.requests, here.lengths = waiting, lengths
            prompt = self.draw(related_prompts(self.grounds, self.stem, here.latest(model)))
            tokens = self.draw(answers_lengths(self.grounds))
            requests.append(self.talk.add(Request(prompt=prompt, adapter=model, max_tokens=tokens)))
        self.steps.append(Burst(requests=tuple(requests)))

    def may_run_beside(self, first: str | None, second: str | None) -> bool:
        """Whether the ground rule holds for these two in one batch."""
        if (first is None) != (second is None):
            return self.grounds.may_mix(BASE_WITH_ADAPTER)
        return first == second or self.grounds.may_mix(ADAPTERS_TOGETHER)

    def repeat(self, name: str) -> None:
        """Ask the plain stem of one name: what is warm now is what must not be hit after a change."""
        tokens = self.draw(answers_lengths(self.grounds))
        request = self.talk.add(Request(prompt=Prompt((self.stem,)), adapter=name, max_tokens=tokens))
        self.steps.append(Burst(requests=(request,)))

    def probe(self, name: str) -> None:
        """Ask a name again after a change. If an earlier change overlapped a request that was sent under the content
        that is back now, go on from that: its answer's blocks were written under two contents and one key."""
        turn = Segment("turn", self.grounds.unit // 2)
        room = self.grounds.longest - turn.length - PROBED_TOKENS
        poisoned = [
            n
            for where, content, n in self.overtaken
            if (where, content) == (name, self.behind[name]) and self.talk.lengths[n] <= room
        ]
        if poisoned and self.draw(st.sampled_from((True, True, False))):
            asked = Request(prompt=Prompt((turn,), continues=poisoned[0]), adapter=name, max_tokens=PROBED_TOKENS)
            self.steps.append(Burst(requests=(self.talk.add(asked),)))
        else:
            self.repeat(name)

    def changed_under_traffic(self, name: str, route: Route) -> None:
        """Requests that are still decoding while the adapter behind their name changes."""
        tokens = self.draw(st.sampled_from((2, 1))) * self.grounds.unit + self.grounds.unit // 2
        long = [self.request(name, tokens=tokens)]
        self.overtaken.append((name, self.behind[name], len(self.talk.requests) - 1))
        if self.draw(st.booleans()):
            held = Prompt((Segment("beside", 2 * self.grounds.unit),))
            long.append(self.talk.add(Request(prompt=held, adapter=name, max_tokens=tokens)))
        moment = self.draw(st.sampled_from((self.grounds.unit // 2, 1)))
        self.steps.append(
            Burst(requests=tuple(long), meanwhile=Meanwhile(change=self.change(name, route), after_tokens=moment))
        )


@st.composite
def lives(draw: st.DrawFn, grounds: Grounds, life: Life) -> Workload:
    """Load, warm up, change, ask again; more of it with more names, contents, turns and neighbours."""
    stage = Stage(draw, grounds, life)
    names = NAMES[: draw(st.integers(1, life.most_names))]
    for name in names:
        stage.load(name)
        stage.repeat(name)
    aside = 1 if life.under_traffic else 2  # traffic under a change is long enough
    for _ in range(draw(st.integers(0, aside))):
        stage.burst()
    # Going back takes two changes; three also return to what came between.
    for number in range(draw(st.integers(2 if life.goes_back else 1, 3))):
        first = number % len(life.routes)  # in the plainest story, each route in its turn
        name, route = draw(st.sampled_from(names)), draw(st.sampled_from(life.routes[first:] + life.routes[:first]))
        if life.under_traffic and not stage.comes_back(name):
            stage.changed_under_traffic(name, route)
        else:
            stage.steps.append(stage.change(name, route))
        stage.probe(name)
        for _ in range(draw(st.integers(0, aside))):
            stage.burst()
    return Workload(tuple(stage.steps))


@st.composite
def neighbours(draw: st.DrawFn, grounds: Grounds) -> Workload:
    """Several adapters and the base model side by side, near-equal names, one prompt among them; nothing changes."""
    stage = Stage(draw, grounds, Life())
    for name in draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True)):
        stage.load(name)
    for model in draw(st.permutations(stage.models())):
        stage.steps.append(
            Burst(requests=(stage.talk.add(Request(prompt=Prompt((stage.stem,)), adapter=model, max_tokens=8)),))
        )
    for _ in range(draw(st.integers(0, 4))):
        stage.burst()
    return Workload(tuple(stage.steps))


@st.composite
def churn(draw: st.DrawFn, grounds: Grounds) -> Workload:
    """More adapter names than the engine has slots, in turns, some of them replaced on the way."""
    stage = Stage(draw, grounds, Life(base_traffic=False))
    names = [f"tenant{i}" for i in range(grounds.slots + draw(st.integers(1, 2)))]
    for name in names:
        stage.load(name)
        stage.repeat(name)
    for _ in range(draw(st.integers(1, 6))):
        name = draw(st.sampled_from(names))
        if draw(st.booleans()):
            stage.steps.append(stage.change(name, draw(st.sampled_from(reloads(grounds)))))
        stage.repeat(name)
    return Workload(tuple(stage.steps))
