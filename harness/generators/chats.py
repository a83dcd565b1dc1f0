"""Conversations that share a prelude: trees with branches, edits and next turns, as chats or as plain token ids."""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st

from harness.generators.prompts import Grounds, Talk, near
from harness.workload import Burst, Prompt, Request, Segment, Step, Workload, new_prompt_length

MOST_TURNS = 4


class Conversations:
    """A workload of conversations in the making. All of them begin with the same prelude."""

    def __init__(self, draw: st.DrawFn, grounds: Grounds, *, chat: bool) -> None:
        self.draw, self.grounds, self.chat = draw, grounds, chat
        # Large blocks leave room for few of them: an opening and its answer have to fit, and a turn behind them.
        self.talk = Talk(limit=max(grounds.longest // 2, min(5 * grounds.unit, grounds.longest - 3 * grounds.unit)))
        self.steps: list[Step] = []
        blocks = draw(st.sampled_from([n for n in (3, 2, 5, 10) if n * grounds.unit <= grounds.longest // 4] or [2]))
        self.prelude = Segment("prelude", blocks * grounds.unit + draw(st.sampled_from((0, 1, -1, grounds.unit // 2))))
        self.questions = 0

    def open(self) -> Request:
        """A new conversation: the prelude and a question of its own."""
        self.questions += 1
        length = self.draw(st.sampled_from((self.grounds.unit // 2, self.grounds.unit + 1, 5)))
        return self.ask(Prompt((self.prelude, Segment(f"question {self.questions}", length))))

    def edit(self) -> Request:
        """The first question again, one token of it or of the prelude edited."""
        question = Segment("question 1", self.grounds.unit // 2)
        if self.draw(st.sampled_from((True, True, True, False))):
            return self.ask(Prompt((self.draw(near(self.grounds, self.prelude)), question)))
        return self.ask(Prompt((self.prelude, msgspec.structs.replace(question, changed=0))))

    def turn(self, number: int, *, named: str = "turn") -> Request:
        """The next turn of request `number`: its prompt, its answer, and something new; or as much as leaves room for
        one more token in its last block, and an answer of that token, whose KV nobody ever writes."""
        length = self.draw(st.sampled_from((self.grounds.unit // 2, 5, self.grounds.unit, 0)))
        if length:
            return self.ask(Prompt((Segment(named, length),), continues=number))
        room = -(self.talk.lengths[number] + 1) % self.grounds.unit or self.grounds.unit
        return Request(prompt=Prompt((Segment(named, room),), continues=number), chat=self.chat, max_tokens=1)

    def ask(self, prompt: Prompt) -> Request:
        """A request whose answer is a few tokens, or fills a block and more."""
        tokens = self.draw(st.sampled_from((8, self.grounds.unit + 2, 4)))
        return Request(prompt=prompt, chat=self.chat, max_tokens=tokens)

    def send(self, *requests: Request) -> None:
        """All at once."""
        self.steps.append(Burst(requests=tuple(self.talk.add(request) for request in requests)))

    def may_go_on(self) -> list[int]:
        """Conversations that have room for another turn."""
        return [n for n, length in enumerate(self.talk.lengths) if length < self.talk.limit]


def is_edited(request: Request) -> bool:
    """Whether a request is nearly another one."""
    return any(s.changed is not None or s.swapped is not None for s in request.prompt.segments)


@st.composite
def trees(draw: st.DrawFn, grounds: Grounds, *, chat: bool) -> Workload:
    """Two conversations that share a prelude, one by one or side by side, the second perhaps when the first is partly
    computed; then more: turns, branches of one turn, edits, one asked again."""
    story = Conversations(draw, grounds, chat=chat)
    if draw(st.sampled_from((False, False, True))):
        first, second = story.open(), story.open()
        story.send(first, msgspec.structs.replace(second, offset_ms=draw(st.sampled_from((0, 10, 20)))))
    else:
        story.send(story.open())
        story.send(story.open())
    for _ in range(draw(st.integers(0, 4))):
        crowd = []
        for i in range(draw(st.sampled_from((1, 2, 3)))):
            known = story.may_go_on()
            match draw(st.sampled_from(("edit", "open", "edit", "again", "turn", "branch")[: 6 if known else 4])):
                case "open":
                    crowd.append(story.open())
                case "edit":
                    crowd.append(story.edit())
                case "again":
                    crowd.append(draw(st.sampled_from(story.talk.requests)))
                case "turn":
                    crowd.append(story.turn(draw(st.sampled_from(known))))
                case "branch":
                    crowd.append(story.turn(draw(st.sampled_from(known)), named=f"branch {i}"))
        story.send(*crowd)
        edits = [request for request in crowd if is_edited(request)]
        again = bool(edits) and draw(st.booleans())
        if again:  # what it has in common with the original lies there twice now
            story.send(edits[0])
    return Workload(tuple(story.steps))


@st.composite
def conversations(draw: st.DrawFn, grounds: Grounds, *, chat: bool) -> Workload:
    """One conversation of several turns, each replaying its own output; perhaps a second one in between."""
    story = Conversations(draw, grounds, chat=chat)
    latest = []
    for _ in range(draw(st.sampled_from((1, 2)))):
        # Long enough that decode fills a block: the next turn has something of decode's to hit. The token that ends
        # an answer has no KV, which matters most where it would end a block; what a template adds is not known here.
        opened = story.open()
        rest = -new_prompt_length(opened.prompt) % grounds.unit
        tokens = grounds.unit + draw(st.sampled_from((2, rest, rest + 1)))
        filled = Request(prompt=opened.prompt, chat=chat, max_tokens=tokens)
        story.send(filled)
        latest.append(len(story.talk.requests) - 1)
    for _ in range(draw(st.integers(1, MOST_TURNS))):
        which = draw(st.sampled_from(range(len(latest))))
        if story.talk.lengths[latest[which]] < story.talk.limit:
            story.send(story.turn(latest[which]))
            latest[which] = len(story.talk.requests) - 1
    return Workload(tuple(story.steps))
