"""Conversations that share a prefix: trees with branches, edits and next turns, as chats or as plain token ids."""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st

from coldproof.harness.workload.generators.guidance import guided
from coldproof.harness.workload.generators.leads import lead
from coldproof.harness.workload.generators.prompts import DrawnRequests, WorkloadLimits, nearly_equal
from coldproof.harness.workload.steps import Burst, Prompt, Request, Segment, Step, Workload
from coldproof.harness.workload.tokens import NONCE_TOKENS, new_prompt_length

MOST_TURNS = 4


class ConversationBuilder:
    """Builds a workload of conversations that all start with the same prefix."""

    def __init__(self, draw: st.DrawFn, limits: WorkloadLimits, *, chat: bool) -> None:
        self.draw, self.limits, self.chat = draw, limits, chat
        # With large blocks only few fit: the first request and its answer must fit, and a turn after them.
        self.drawn = DrawnRequests(
            limit=max(limits.longest // 2, min(5 * limits.unit, limits.longest - 3 * limits.unit))
        )
        self.steps: list[Step] = []
        fitting = [n for n in (3, 2, 5, 10) if n * limits.unit <= limits.longest // 4] or [2]
        blocks = draw(st.sampled_from(limits.sizes(fitting)))
        self.prelude = Segment("prelude", blocks * limits.unit + draw(st.sampled_from((0, 1, -1, limits.unit // 2))))
        self.questions = 0

    def open(self) -> Request:
        """Return the first request of a new conversation: the shared prefix and its own question."""
        self.questions += 1
        length = self.draw(st.sampled_from((self.limits.unit // 2, self.limits.unit + 1, 5)))
        return self.make_request(Prompt((self.prelude, Segment(f"question {self.questions}", length))))

    def edit(self) -> Request:
        """Return the first question again, with one token of it or of the prefix changed."""
        question = Segment("question 1", self.limits.unit // 2)
        if self.draw(st.sampled_from((True, True, True, False))):
            return self.make_request(Prompt((self.draw(nearly_equal(self.limits, self.prelude)), question)))
        return self.make_request(Prompt((self.prelude, msgspec.structs.replace(question, changed=0))))

    def turn(self, number: int, *, named: str = "turn") -> Request:
        """Return the next turn of request `number`: its prompt, its answer, and new tokens.

        The new tokens may end one token before the end of a block, with an answer of one token. Then no pass writes the
        KV of the block's last token.
        """
        length = self.draw(st.sampled_from((self.limits.unit // 2, 5, self.limits.unit, 0)))
        if length:
            return self.make_request(Prompt((Segment(named, length),), continues=number))
        room = -(self.drawn.lengths[number] + 1) % self.limits.unit or self.limits.unit
        return Request(prompt=Prompt((Segment(named, room),), continues=number), chat=self.chat, max_tokens=1)

    def cut(self, number: int) -> Request:
        """Return the next turn of a client that cuts its history: about the newest half of `number`, and new tokens.

        It begins at a whole unit of the earlier prompt, where blocks of its tokens have another beginning before them.
        """
        start = self.drawn.lengths[number] // 2 // self.limits.unit * self.limits.unit
        return self.make_request(Prompt((Segment("cut", 5),), continues=number, start=start))

    def goes_on(self, number: int) -> Request:
        """Return a request that goes on where the answer of `number` ended, without a token of its own."""
        return self.make_request(Prompt((), continues=number))

    def make_request(self, prompt: Prompt) -> Request:
        """Return a request whose answer has a few tokens, or fills a block and more."""
        tokens = self.draw(st.sampled_from(self.limits.sizes((8, self.limits.unit + 2, 4))))
        return Request(prompt=prompt, chat=self.chat, max_tokens=tokens)

    def send(self, *requests: Request) -> None:
        """Add a burst of these requests."""
        self.steps.append(Burst(requests=tuple(self.drawn.add(request) for request in requests)))

    def continuable(self) -> list[int]:
        """Return the requests that have room for another turn."""
        return [n for n, length in enumerate(self.drawn.lengths) if length < self.drawn.limit]


def is_edited(request: Request) -> bool:
    """Return whether a request almost equals another one."""
    return any(s.changed is not None or s.swapped is not None for s in request.prompt.segments)


@guided
@st.composite
def trees(draw: st.DrawFn, limits: WorkloadLimits, *, chat: bool) -> Workload:
    """Draw conversations that share a prefix, then more requests: turns, branches of one turn, edits, repeats.

    It begins with two branches of one turn at once, which share a block that is not full, or with two conversations.
    These are sent one by one or together, the second perhaps while the first is partly computed.
    """
    builder = ConversationBuilder(draw, limits, chat=chat)
    beginnings = ("branches", "together", "apart", "apart")  # the last one alone shows hits on another's prefix
    match draw(st.sampled_from(beginnings[::-1] if limits.slow else beginnings)):
        case "branches":
            builder.send(builder.open())
            builder.send(*(builder.turn(0, named=name) for name in ("left", "right")))
        case "together":
            first, second = builder.open(), builder.open()
            builder.send(first, msgspec.structs.replace(second, offset_ms=draw(st.sampled_from((0, 10, 20)))))
        case "apart":
            builder.send(builder.open())
            builder.send(builder.open())
    for _ in range(draw(st.integers(0, limits.most(4)))):
        batch = []
        for i in range(draw(st.sampled_from(limits.sizes((1, 2, 3))))):
            known = builder.continuable()
            match draw(st.sampled_from(("edit", "open", "edit", "again", "turn", "branch")[: 6 if known else 4])):
                case "open":
                    batch.append(builder.open())
                case "edit":
                    batch.append(builder.edit())
                case "again":
                    batch.append(draw(st.sampled_from(builder.drawn.requests)))
                case "turn":
                    batch.append(builder.turn(draw(st.sampled_from(known))))
                case "branch":
                    batch.append(builder.turn(draw(st.sampled_from(known)), named=f"branch {i}"))
        builder.send(*batch)
        edits = [request for request in batch if is_edited(request)]
        again = bool(edits) and draw(st.booleans())
        if again:  # the blocks that it shares with the original are cached twice now
            builder.send(edits[0])
    return Workload(tuple(builder.steps))


@guided
@st.composite
def conversations(draw: st.DrawFn, limits: WorkloadLimits, *, chat: bool, evidence: str = "") -> Workload:
    """Draw one conversation of several turns, each with the engine's own output; perhaps a second one interleaved.

    `evidence`: the name of hits on what decode wrote. As long as a trial lacks them, the turn after the next one is
    drawn as well: some layers with windows keep what ends at a prompt's last block alone, so that the next turn misses
    what decode wrote, and only the turn after it can hit that.

    Without `chat`, the client may cut the history before the last turn, and may let an answer go on: its prompt is then
    exactly what an engine has kept (mlx-lm#1215).
    """
    builder = ConversationBuilder(draw, limits, chat=chat)
    latest = []
    longer = bool(evidence) and draw(lead(limits, (evidence,))) == evidence
    for _ in range(1 if longer else draw(st.sampled_from(limits.sizes((1, 2))))):
        # Long enough that decode fills a block, so that the next turn can hit it. The last token of an answer has no
        # KV, which matters most at the end of a block. What a chat template adds is not known here.
        opened = builder.open()
        rest = -new_prompt_length(opened.prompt) % limits.unit
        filled_by_answer = limits.slow and rest > 0 and not chat  # then a slow model need not fill another block
        edges = (2, rest, rest + 1, max(1, rest - 1))
        tokens = rest + 1 if filled_by_answer else limits.unit + draw(st.sampled_from(edges))
        filled = Request(prompt=opened.prompt, chat=chat, max_tokens=tokens)
        builder.send(filled)
        latest.append(len(builder.drawn.requests) - 1)
    least = 2 if longer else 1
    for _ in range(draw(st.integers(least, limits.most(MOST_TURNS, least=least)))):
        which = draw(st.sampled_from(range(len(latest))))
        if builder.drawn.lengths[latest[which]] < builder.drawn.limit:
            builder.send(builder.turn(latest[which]))
            latest[which] = len(builder.drawn.requests) - 1
    # In smaller blocks, a prompt without the nonce could hit a token of another run by chance.
    if not chat and limits.block >= NONCE_TOKENS and draw(st.booleans()):
        builder.send(builder.cut(draw(st.sampled_from(latest))))
    if not chat and draw(st.booleans()):
        builder.send(builder.goes_on(draw(st.sampled_from(latest))))
    return Workload(tuple(builder.steps))
