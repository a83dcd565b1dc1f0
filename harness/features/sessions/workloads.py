"""Sessions that take further input, beside requests that share their beginnings or hit what they left.

All open sessions fit into the pool together with their answers and one other request: an engine cannot preempt a
session that waits for input. The first choice of every draw is the simplest: one session, and its content asked again.
"""

from __future__ import annotations

from collections import Counter

import msgspec
from hypothesis import strategies as st

from coldproof.harness.features.sessions.steps import CloseSession
from coldproof.harness.workload.generators.identities import PLAIN, TENANT, AdapterAndSalt, load_tenant
from coldproof.harness.workload.generators.leads import lead
from coldproof.harness.workload.generators.prompts import BASE_WITH_ADAPTER, WorkloadLimits
from coldproof.harness.workload.steps import Burst, Idle, Prompt, Request, Segment, SetAdapter, Step, Workload
from coldproof.harness.workload.tokens import NONCE_TOKENS, new_prompt_length
from coldproof.harness.workload.transform import change_requests

SALTED: AdapterAndSalt = (None, "red")
NAMES = ("a", "b", "c")
SETTLE_MS = 10
AHEAD = 8  # tokens for which an engine may allocate blocks in advance
SHORT_FIRST = "sessions that held less than a block before their second turn"


class DrawnSession(msgspec.Struct):
    """A session so far. `turns`: the numbers of its requests; `length`: the tokens of the latest, with its answer."""

    name: str
    identity: AdapterAndSalt
    turns: list[int]
    length: int


class SessionBuilder:
    """Builds a workload of sessions and other requests. `streaming`: of sessions that keep whole answers."""

    def __init__(self, draw: st.DrawFn, limits: WorkloadLimits, *, with_adapter: bool, streaming: bool = False) -> None:
        self.draw, self.limits, self.streaming = draw, limits, streaming
        self.steps: list[Step] = []
        self.requests: list[Request] = []
        self.open: list[DrawnSession] = []
        self.known: list[DrawnSession] = []  # also those that were closed
        self.identities = [PLAIN, PLAIN, SALTED]
        if with_adapter and draw(st.sampled_from((False, True, True))):
            self.steps.append(load_tenant(limits))
            self.identities = [PLAIN, TENANT, TENANT, SALTED]
        self.longest = min(limits.longest, limits.most_tokens // 4, (limits.pool or limits.longest) // limits.groups)
        self.short = bool(draw(lead(limits, (SHORT_FIRST,)))) or draw(st.sampled_from((*[False] * 7, True)))
        blocks = [blocks for blocks in (2, 3, 5, 8) if blocks * limits.unit <= self.longest // 6] or [1]
        edge = draw(st.sampled_from((1, 0, -1, limits.unit // 2)))
        length = draw(st.sampled_from(limits.sizes(blocks))) * limits.unit + edge - NONCE_TOKENS
        self.stem = Segment("stem", 1 if self.short else max(1, length))

    def begin(self) -> None:
        """Open a session, if there is a name and room for it."""
        if len(self.known) == len(NAMES) or not self.has_place():
            return
        adapter, salt = self.draw(st.sampled_from(self.identities))
        # In a session whose first turn is short, that and its answer may end before the first block does.
        own, answer = (Segment("input", 1), 2) if self.short else self.input(new_prompt_length(Prompt((self.stem,))))
        request = Request(prompt=Prompt((self.stem, own)), adapter=adapter, salt=salt, max_tokens=answer)
        length = new_prompt_length(request.prompt) + answer
        if self.fits(length):
            session = DrawnSession(NAMES[len(self.known)], (adapter, salt), [len(self.requests)], length)
            self.open.append(session)
            self.known.append(session)
            self.send([self.in_session(request, session)])

    def turn(self, session: DrawnSession) -> Request | None:
        """Return the next turn of a session; None if there is no room."""
        dropped = 0 if self.streaming else 1
        own, answer = self.input(session.length - dropped)
        more = own.length - dropped + answer
        if not self.fits(more):
            return None
        session.length += more
        prompt = Prompt((own,), continues=session.turns[-1], start=0, end=None if self.streaming else -1)
        adapter, salt = session.identity
        return self.in_session(Request(prompt=prompt, adapter=adapter, salt=salt, max_tokens=answer), session)

    def in_session(self, request: Request, session: DrawnSession) -> Request:
        """Return a request as a turn of a session."""
        return msgspec.structs.replace(request, session=session.name, streaming=self.streaming)

    def beside(self, session: DrawnSession) -> Request:
        """Return a request with what a session had: up to its latest answer, up to one that it went on from, or a
        turn's prompt.

        In place of the token that the session dropped, the first two have that token. Some have another identity.
        """
        number = self.draw(st.sampled_from(session.turns[::-1]))
        identity = session.identity if self.draw(st.sampled_from((True, True, False))) else (None, "blue")
        request = self.after(number, identity)
        if self.draw(st.booleans()):
            request = msgspec.structs.replace(request, prompt=self.requests[number].prompt)
        return request

    def after(self, number: int, identity: AdapterAndSalt) -> Request:
        """Return a request with a turn's prompt, its whole answer, and more tokens."""
        adapter, salt = identity
        prompt = Prompt((Segment("beside", self.limits.unit // 2),), continues=number)
        return Request(prompt=prompt, adapter=adapter, salt=salt, max_tokens=4)

    def close(self, session: DrawnSession) -> None:
        """End a session, which leaves its blocks to others."""
        self.open.remove(session)
        self.steps.append(CloseSession(session.name, aborted=self.draw(st.sampled_from((False, False, True)))))

    def input(self, before: int) -> tuple[Segment, int]:
        """Return new tokens behind `before` others, and the length of the answer. They may end anywhere in a block.

        The last token of the answer, which the session drops, may be the last one of a block, or that of the prompt.
        """
        unit = self.limits.unit
        length = self.draw(st.sampled_from(self.limits.sizes((unit + 1, 1, unit // 2, unit - 1, 2 * unit))))
        answer = self.draw(st.sampled_from(self.limits.sizes((4, 1, unit + 2, 2), least=4)))
        match self.draw(st.sampled_from(("answer", "prompt", "neither"))):
            case "answer":
                length += -(before + length + answer) % self.limits.block
            case "prompt":
                length += -(before + length) % self.limits.block
        return Segment(f"input {len(self.requests)}", length), answer

    def has_place(self) -> bool:
        """Return whether one more session may be open: each takes the place of a running request."""
        return self.limits.requests is None or len(self.open) + 1 < self.limits.requests

    def fits(self, more: int) -> bool:
        """Return whether the sessions have room for so many more tokens, beside one request of the longest of them."""
        lengths = [session.length for session in self.open]
        longest = max(lengths, default=0) + more
        rounded = sum(lengths) + more + longest + (len(lengths) + 2) * (self.limits.block + AHEAD)
        return longest + 2 * self.limits.unit <= self.longest and (
            self.limits.pool is None or rounded * self.limits.groups <= self.limits.pool
        )

    def send(self, requests: list[Request]) -> None:
        """Add a burst of these requests, or of each of them if their models may not run side by side."""
        together = all(self.limits.may_run_beside(requests[0].adapter, other.adapter) for other in requests)
        bursts = [requests] if together else [[request] for request in requests]
        self.steps += [Burst(requests=tuple(burst)) for burst in bursts]
        self.requests += requests

    def go_on(self) -> None:
        """Send the next turn of one session or of all, perhaps beside other requests, and perhaps its prompt again,
        which hits all that the turn has left.
        """
        count = self.draw(st.sampled_from((0, 0, 1, self.limits.most(3))))
        burst = [self.beside(self.draw(st.sampled_from(self.known))) for _ in range(count)]
        for session in self.open if self.draw(st.booleans()) else [self.draw(st.sampled_from(self.open))]:
            request = self.turn(session)
            if request is not None:
                session.turns.append(len(self.requests) + len(burst))
                burst.append(request)
        if burst:
            self.send(burst)
            if burst[-1].session and self.draw(st.sampled_from((True, False))):
                self.send([msgspec.structs.replace(burst[-1], session=None, streaming=False)])


@st.composite
def sessions_that_switch(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw streaming sessions. If an adapter is loaded, every second or third turn of a session is with the adapter and
    the others without, or the other way round.
    """
    workload = draw(sessions(limits, with_adapter=True, streaming=True))
    names = [step.name for step in workload.steps if isinstance(step, SetAdapter)]
    if not names or not limits.may_mix(BASE_WITH_ADAPTER):
        return workload
    every = draw(st.sampled_from((2, 3)))
    turns: Counter[str] = Counter()

    def with_other_adapter(request: Request) -> Request:
        if not request.session:
            return request
        turns[request.session] += 1
        if turns[request.session] % every:
            return request
        return msgspec.structs.replace(request, adapter=None if request.adapter else names[0])

    return change_requests(workload, with_other_adapter)


@st.composite
def sessions(draw: st.DrawFn, limits: WorkloadLimits, *, with_adapter: bool, streaming: bool = False) -> Workload:
    """Draw up to three sessions whose turns interleave, with requests that hit what they hold, and what they leave
    once they are closed. At the end all are closed, the engine is idle, and others begin with what they dropped.
    """
    builder = SessionBuilder(draw, limits, with_adapter=with_adapter, streaming=streaming)
    builder.begin()
    if not builder.known:  # no session fits
        return Workload((Burst(requests=(Request(prompt=Prompt((Segment("stem", 1),))),)),))
    for _ in range(draw(st.integers(2, limits.most(7, least=3)))):
        match draw(st.sampled_from(("turn", "turn", "beside", "begin", "close"))):
            case "begin":
                builder.begin()
            case "beside":
                builder.send([builder.beside(draw(st.sampled_from(builder.known)))])
            case "close" if builder.open:
                builder.close(draw(st.sampled_from(builder.open)))
            case _ if builder.open:
                builder.go_on()
    for session in list(builder.open):
        builder.close(session)
    builder.steps.append(Idle(SETTLE_MS))
    builder.send([builder.after(session.turns[0], session.identity) for session in builder.known])
    return Workload(tuple(builder.steps))


@st.composite
def sessions_beyond_the_context(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw a session whose next input exceeds the context by little or much, with a request beside it or none; then a
    request to an engine that must have refused that turn and nothing else. There is no session if it costs too much.
    """
    other = Request(prompt=Prompt((Segment("other", limits.unit + 1),)), max_tokens=8)
    if limits.longest > min(limits.most_tokens // 2, limits.pool or limits.longest):
        return Workload((Burst(requests=(other,)),))
    left = draw(st.sampled_from((limits.unit, 1, 2 * limits.unit)))
    answer = draw(st.sampled_from((4, 1)))
    length = limits.longest - NONCE_TOKENS - answer - left
    first = Request(prompt=Prompt((Segment("long", length),)), max_tokens=answer, session="a")
    beyond = Segment("input 1", left + draw(st.sampled_from((2, limits.unit + 2))))
    turn = Request(prompt=Prompt((beyond,), continues=0, start=0, end=-1), max_tokens=4, session="a")
    beside = (turn, other) if draw(st.booleans()) and limits.requests != 1 else (turn,)
    bursts = [Burst(requests=one) for one in ((first,), beside, (other,))]
    return Workload((*bursts, CloseSession("a"), Idle(SETTLE_MS), Burst(requests=(other,))))
