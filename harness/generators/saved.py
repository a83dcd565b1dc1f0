"""Stories in which what is cached is saved under a name, and restored when others have taken its place."""

from __future__ import annotations

from hypothesis import strategies as st

from adapters.base import Capability
from harness.generators.adapters import Life, Stage
from harness.generators.prompts import Grounds, Talk, answers_lengths, near
from harness.workload import Burst, Prompt, Request, RestoreState, SaveState, Segment, SetAdapter, Workload

NAMES = ("kept", "other")
ADAPTERS = ("tenant", "Tenant")


class Story(Stage):
    """A workload in the making whose requests are asked one by one."""

    def __init__(self, draw: st.DrawFn, grounds: Grounds) -> None:
        super().__init__(draw, grounds, Life())
        self.saved: list[str] = []
        self.tail = Segment("tail", draw(st.sampled_from((grounds.unit + 1, 1, 5))))
        self.talk = Talk(limit=grounds.longest // 2)

    def ask(self, prompt: Prompt, whom: str | None) -> int:
        """One request; its number."""
        tokens = self.draw(answers_lengths(self.grounds))
        self.steps.append(Burst(requests=(self.talk.add(Request(prompt=prompt, adapter=whom, max_tokens=tokens)),)))
        return len(self.talk.requests) - 1

    def save(self, name: str) -> None:
        """Under a name."""
        self.steps.append(SaveState(name))
        self.saved.append(name)

    def come_back(self, first: int, whom: str | None) -> None:
        """What was asked first once more, or something that has much in common with it."""
        match self.draw(st.sampled_from(("again", "turn", "more", "part", "near"))):
            case "turn":
                self.ask(Prompt((Segment("turn", 5),), continues=first), whom)
            case "more":
                self.ask(Prompt((self.stem, self.tail)), whom)
            case "part":
                self.ask(Prompt((Segment(self.stem.name, self.stem.length - self.grounds.unit), self.tail)), whom)
            case "near":
                self.ask(Prompt((self.draw(near(self.grounds, self.stem)), self.tail)), whom)
            case _:
                self.ask(Prompt((self.stem,)), whom)

    def interrupt(self, whom: str | None) -> None:
        """Others take the place: with nothing in common with what was saved, or with a part of it."""
        for _ in range(self.draw(st.sampled_from((1, 1, 2)))):
            kind = self.draw(st.sampled_from(("strange", "strange", "part")))
            strange = Segment("strange", self.draw(st.sampled_from((2, 4))) * self.grounds.unit)
            part = Segment(self.stem.name, self.stem.length // 2)
            self.ask(Prompt((strange,) if kind == "strange" else (part, strange)), whom)


@st.composite
def saved_and_restored(draw: st.DrawFn, grounds: Grounds) -> Workload:
    """Asked, saved, something else, restored, asked again; more of it with two names. All under one identity: whoever
    changes adapters at that tells something else."""
    story = Story(draw, grounds)
    whom = None
    if Capability.ADAPTER_CHOICE in grounds.can and draw(st.booleans()):
        whom = ADAPTERS[0]
        story.load(whom)
    first = story.ask(Prompt((story.stem,)), whom)
    story.save(NAMES[0])
    story.interrupt(whom)
    if draw(st.booleans()):
        story.save(draw(st.sampled_from((NAMES[1], NAMES[0]))))
    for _ in range(draw(st.integers(1, 3))):
        story.steps.append(RestoreState(draw(st.sampled_from(story.saved))))
        story.come_back(first, whom)
        if draw(st.booleans()):
            story.interrupt(whom)
    return Workload(tuple(story.steps))


@st.composite
def restored_for_others(draw: st.DrawFn, grounds: Grounds) -> Workload:
    """Saved under one adapter or for the base model, then somebody under another adapter, restored, and the same prompt
    for either of the two.

    Nobody follows an adapter's request with one for the base model, but after a restore: an engine that goes on from
    the adapter's KV there fails without any state saved, which is LORA-4's and would be found in place of this.
    """
    story = Story(draw, grounds)
    for name, content in zip(ADAPTERS, draw(st.permutations(grounds.contents)), strict=False):
        story.steps.append(SetAdapter(name=name, content=content, path=f"files-{content}"))
    saver = draw(st.sampled_from((ADAPTERS[0], None)))
    first = story.ask(Prompt((story.stem,)), saver)
    story.save(NAMES[0])
    for _ in range(draw(st.integers(1, 3))):
        other = draw(st.sampled_from([name for name in reversed(ADAPTERS) if name != saver]))
        story.ask(Prompt((Segment("strange", 2 * grounds.unit),)), other)
        story.steps.append(RestoreState(NAMES[0]))
        story.come_back(first, draw(st.sampled_from((other, other, saver))))
    return Workload(tuple(story.steps))
