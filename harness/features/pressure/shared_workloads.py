"""Bursts that need more blocks than the pool has, with spread: who shares how much with whom, who outgrows the pool
when and how often, who arrives, disconnects or resets the cache meanwhile, and under which identity.

`outgrowing_requests` draws what a preemption needs. Here are the states beside it: preemptions of sharers and twins, of
requests with a hit, with one token, again and again; guests that hit and end in one step; prompts that need the whole
pool; clients that disconnect while their request is preempted; resets while requests wait to be resumed. Most bursts
fill the pool with prompts, so that few steps of decode outgrow it: an example costs a fraction of a long one.
"""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.requests import Abort, Stage
from coldproof.adapters.protocol.resets import ResetScope
from coldproof.harness.features.pressure.filling_workloads import PoolFillings, Sizes
from coldproof.harness.features.pressure.workloads import pool_tokens
from coldproof.harness.workload.generators.guidance import guided
from coldproof.harness.workload.generators.identities import AdapterAndSalt
from coldproof.harness.workload.generators.priorities import PRIORITIES
from coldproof.harness.workload.generators.prompts import (
    WorkloadLimits,
    computed_tokens,
)
from coldproof.harness.workload.steps import (
    Burst,
    Idle,
    Meanwhile,
    Prompt,
    Request,
    Reset,
    Route,
    Segment,
    SetAdapter,
    Step,
    Workload,
)
from coldproof.harness.workload.tokens import NONCE_TOKENS, new_prompt_length

OFFSETS = (0, 0, 0, 10, 20, 40, 80)
TENANTS = ("tenant", "Tenant")
SALTS = (None, "red", "red2")
LEAST_UNITS = 4  # of a pool in which several requests compete
OUTGROWING = ("brim", "crowd", "whole")  # bursts with preemptions
LEFT = ("sharers", "brim", "sharers", "whole")  # what one leaves, others use, or take at once
VISITOR = "visitor"  # the names of their prompts
HEADS = ("own", "head", "head", "head", "twin", "other head")
HEADS_OF_SHARERS = ("head", "head", "head", "twin", "own")
KINDS = ("brim", "whole", "crowd", "brim", "sharers", "whole", "halves", "sharers", "brim")

Scopes = tuple[tuple[ResetScope, ...], ...]


class PressureBuilder:
    """The requests of one workload as they are drawn. `pool`: in units."""

    def __init__(self, draw: st.DrawFn, limits: WorkloadLimits, kinds: tuple[str, ...]) -> None:
        self.draw, self.limits, self.kinds = draw, limits, kinds
        self.unit = limits.unit
        self.pool = max(LEAST_UNITS, pool_tokens(limits) // limits.unit)
        self.identities = self.drawn_identities()
        self.heads: tuple[str, ...] = HEADS

    def drawn_identities(self) -> list[AdapterAndSalt]:
        """Draw whose requests compete: mostly one identity, else several that may run beside each other."""
        can, draw = self.limits.can, self.draw
        names = TENANTS if Capability.ADAPTER_CHOICE in can and len(self.limits.contents) > 1 else ()
        salts = SALTS if Capability.CACHE_SALT in can else (None,)
        one: AdapterAndSalt = (draw(st.sampled_from((None, None, *names))), draw(st.sampled_from((None, *salts))))
        if draw(st.booleans()):
            return [one]
        others = [name for name in (None, *names) if self.limits.may_run_beside(name, one[0])]
        return [one, (draw(st.sampled_from(others)), draw(st.sampled_from(salts)))]

    def loads(self) -> list[Step]:
        """Return loads of the adapters that requests use, each with its own content."""
        names = dict.fromkeys(name for name, _ in self.identities if name is not None)
        return [
            SetAdapter(name=name, content=content, path=f"files-{content}", route=Route.LOAD)
            for name, content in zip(names, self.limits.contents, strict=False)
        ]

    def sizes(self) -> list[Sizes]:
        """Draw the lengths of the requests of a burst."""
        kind = self.draw(st.sampled_from(self.kinds))
        if kind == "sharers":  # most of the small ones share a head or are equal
            self.heads = HEADS_OF_SHARERS
        fillings = PoolFillings(self.draw, unit=self.unit, pool=self.pool, most_tokens=self.limits.most_tokens)
        return fillings.sizes(kind)

    def prompt(self, length: int, number: int) -> Prompt:
        """Return a prompt of about so many tokens: its own, behind a head that others have, or equal to another one."""
        own = Segment(f"request {number}", max(1, length - NONCE_TOKENS))
        match self.draw(st.sampled_from(self.heads)):
            case "twin":
                return Prompt((msgspec.structs.replace(own, name="twin"),))
            case "head" | "other head" as kind:
                head = self.draw(st.sampled_from((1, 2, 1, max(1, length // self.unit - 1)))) * self.unit
                if head + 1 < own.length:
                    tail = msgspec.structs.replace(own, length=own.length - head)
                    return Prompt((Segment(kind, head), tail))
        return Prompt((own,))

    def request(self, sizes: Sizes, number: int) -> Request:
        """Return a request with these lengths, as far as the model allows, perhaps later and with a priority."""
        room = min(self.limits.longest, self.pool * self.unit)
        answer = min(sizes[1], max(room // 2, room - sizes[0]))
        adapter, salt = self.draw(st.sampled_from(self.identities))
        return Request(
            prompt=self.prompt(max(NONCE_TOKENS + 1, min(sizes[0], room - answer)), number),
            adapter=adapter,
            salt=salt,
            max_tokens=answer,
            offset_ms=self.draw(st.sampled_from(OFFSETS)) if number else 0,
            priority=self.priority(),
        )

    def priority(self) -> int:
        """Draw a priority, if the engine has any."""
        return self.draw(st.sampled_from(PRIORITIES)) if Capability.PRIORITY in self.limits.can else 0

    def guest(self, hosts: list[Request], number: int) -> Request:
        """Return a request that comes while others compete, shares a prompt with one of them, and ends soon."""
        host = self.draw(st.sampled_from(hosts))
        segments = host.prompt.segments
        if self.draw(st.booleans()):
            segments = (*segments[:-1], Segment(f"guest {number}", self.draw(st.sampled_from((5, self.unit - 8)))))
        return msgspec.structs.replace(
            host,
            prompt=Prompt(segments),
            max_tokens=self.draw(st.sampled_from((1, 1, 2, 8))),
            offset_ms=self.draw(st.integers(0, 30)) * 10,
        )

    def visitor(self, number: int) -> Request:
        """Return a request that comes while others compete and shares no prompt with them. If it was sent before, the
        blocks that it hits are held by nobody else.
        """
        own = Segment(f"{VISITOR} {number}", self.draw(st.sampled_from((3, 2))) * self.unit)
        tail = Segment(f"tail of {VISITOR} {number}", self.draw(st.sampled_from((2 * self.unit, 5))))
        adapter, salt = self.draw(st.sampled_from(self.identities))
        return Request(
            prompt=Prompt((own, tail)),
            adapter=adapter,
            salt=salt,
            max_tokens=self.draw(st.sampled_from((1, 1, 2, 8))),
            offset_ms=self.draw(st.integers(0, 30)) * 10,
            priority=self.priority(),
        )

    def competing(self) -> tuple[Request, ...]:
        """Return the requests of the burst: those that outgrow the pool, perhaps with guests and visitors."""
        hosts = [self.request(sizes, number) for number, sizes in enumerate(self.sizes())]
        requests = list(hosts)
        for number in range(self.draw(st.sampled_from((0, 1, 0, 2)))):
            guest = self.visitor(number) if self.draw(st.booleans()) else self.guest(hosts, number)
            fits = new_prompt_length(guest.prompt) + guest.max_tokens <= self.limits.longest
            if fits and computed_tokens([*requests, guest]) <= self.limits.most_tokens // 2:
                requests.append(guest)
        return tuple(requests)

    def warm_up(self, requests: tuple[Request, ...]) -> list[Step]:
        """Return nothing, or requests for some of the prompts or their heads: what comes then begins with a hit."""
        if self.draw(st.booleans()):
            return []
        chosen = self.draw(st.permutations(requests))[: self.draw(st.sampled_from((1, 2)))]
        visitors = [one for one in requests if one.prompt.segments[0].name.startswith(VISITOR)]
        chosen = [*visitors[:1], *(one for one in chosen if one not in visitors[:1])][:2]
        tokens = self.draw(st.sampled_from((1, 4)))
        heads = [Prompt(one.prompt.segments[: self.draw(st.sampled_from((1, 2)))]) for one in chosen]
        first = (
            msgspec.structs.replace(one, prompt=head, max_tokens=min(tokens, one.max_tokens), offset_ms=0)
            for one, head in zip(chosen, heads, strict=True)
        )
        return [Burst(requests=(request,)) for request in first]

    def disconnecting(self, requests: tuple[Request, ...]) -> tuple[Request, ...]:
        """Return the requests, of which one to three have a client that disconnects. The others keep up the pressure:
        if most disconnect, the pool is never exceeded, and nothing is preempted.

        Or all but the first one disconnect when they are preempted: nobody knows which of them will be. Or one or two
        do at their first token, as the others go on with what they share.
        """
        match self.draw(st.sampled_from(("any", "preempted", "first token"))):
            case "preempted" if Capability.PREEMPTION_COUNTS in self.limits.can:
                leave = Abort(at=Stage.PREEMPTED)
                return (requests[0], *(msgspec.structs.replace(one, abort=leave) for one in requests[1:]))
            case "first token":
                first = self.draw(st.permutations(range(len(requests))))[: self.draw(st.sampled_from((1, 2)))]
                early = [number for number in first if requests[number].max_tokens > 1]
                return tuple(
                    msgspec.structs.replace(one, abort=Abort(after_tokens=1)) if number in early else one
                    for number, one in enumerate(requests)
                )
        leaving = self.draw(st.permutations(range(len(requests))))[: self.draw(st.sampled_from((1, 2, 1, 3)))]
        aborts = {number: self.draw(st.sampled_from(self.moments(requests[number]))) for number in leaving}
        return tuple(msgspec.structs.replace(one, abort=aborts.get(n)) for n, one in enumerate(requests))

    def moments(self, request: Request) -> list[Abort]:
        """Return when its client may disconnect: while preempted, late and so often after that, at the first token, in
        the prefill or the queue.
        """
        last = request.max_tokens - 1
        tokens = [Abort(after_tokens=n) for n in (last, last, request.max_tokens // 2, 1, 2) if 0 < n <= last]
        before = [Abort(after_ms=ms, at=stage) for ms in (10, 30) for stage in (Stage.PREFILL, Stage.QUEUED)]
        preempted = [Abort(at=Stage.PREEMPTED)] * 3 if Capability.PREEMPTION_COUNTS in self.limits.can else []
        return [*preempted, *tokens, *before]

    def reset(self, requests: tuple[Request, ...], scopes: Scopes) -> Meanwhile:
        """Return one to three resets during the burst, from its first token to its end."""
        most = requests[0].max_tokens
        moment = self.draw(st.sampled_from((1, 2, max(1, most // 2), max(1, most - 1))))
        more = [Reset(self.draw(st.sampled_from(scopes))) for _ in range(self.draw(st.sampled_from((0, 1, 2))))]
        first = Reset(self.draw(st.sampled_from(scopes)))
        gap = self.draw(st.sampled_from((10, 30, 100)))
        return Meanwhile(change=first, after_tokens=moment, then=tuple(more), gap_ms=gap)

    def afterwards(self, requests: tuple[Request, ...], before: int) -> list[Step]:
        """Return requests for what the burst left: its prompts and next turns, also under another identity.

        `before`: how many requests come before the burst. What cannot be afforded is left out.
        """
        left = self.limits.most_tokens - 2 * computed_tokens(requests)  # with the requests before
        found: list[Step] = []
        for number in self.followed(len(requests)):
            one = requests[number]
            adapter, salt = self.draw(st.sampled_from(self.followers(one)))
            turn = self.draw(st.booleans())  # after a disconnect, of as much of the answer as the client saw
            tail = Segment("turn", 5)
            prompt = Prompt((tail,), continues=before + number) if turn else Prompt((*one.prompt.segments, tail))
            tokens = self.draw(st.sampled_from((4, 1)))
            length = new_prompt_length(one.prompt) + (one.max_tokens if turn else 0) + tail.length + tokens
            left -= length
            if length <= self.limits.longest and left > 0:
                found.append(Burst(requests=(Request(prompt=prompt, adapter=adapter, salt=salt, max_tokens=tokens),)))
        return found

    def followed(self, count: int) -> list[int]:
        """Draw which requests are followed by others: some, or the last ones, which are preempted and end last."""
        last_first = list(range(count))[::-1]
        order = self.draw(st.permutations(last_first)) if self.draw(st.booleans()) else last_first
        return order[: self.draw(st.sampled_from((2, 1, 4)))]

    def followers(self, one: Request) -> list[AdapterAndSalt]:
        """Return whose requests may follow one: its own, twice, and those of identities of which its blocks must be
        kept apart: without its salt, without its adapter, of the base model, and of the others that competed.
        """
        own = (one.adapter, one.salt)
        others = dict.fromkeys([(one.adapter, None), (None, one.salt), (None, None), *self.identities])
        return [own, own, *(other for other in others if other != own)]


@guided
@st.composite
def pressed(
    draw: st.DrawFn,
    limits: WorkloadLimits,
    *,
    outgrow: bool = False,
    disconnects: bool = False,
    scopes: Scopes = (),
) -> Workload:
    """Draw requests that compete for the pool, perhaps on a hit, and what follows them.

    `outgrow`: only requests that outgrow the pool. `disconnects`: some clients do. `scopes`: those of the resets
    meanwhile; empty for none.
    """
    builder = PressureBuilder(draw, limits, OUTGROWING if outgrow else LEFT if disconnects else KINDS)
    requests = builder.competing()
    warm = builder.warm_up(requests)
    meanwhile = builder.reset(requests, scopes) if scopes else None
    sent = builder.disconnecting(requests) if disconnects and Capability.ABORT in limits.can else requests
    if meanwhile is not None:  # it counts the tokens of the first request
        sent = (msgspec.structs.replace(sent[0], abort=None), *sent[1:])
    after = builder.afterwards(sent, before=len(warm))
    return Workload((*builder.loads(), *warm, Burst(requests=sent, meanwhile=meanwhile), *after, Idle(20)))
