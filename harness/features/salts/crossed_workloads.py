"""Equal tokens under identities that are almost equal, where a key is made in other code than for a usual prompt.

These are blocks that decode fills, a first block that a prompt does not fill, next turns of another identity's answer,
blocks far behind the first one, and requests that are admitted in one step.
"""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.harness.workload.generators.edges import long_and_parts
from coldproof.harness.workload.generators.guidance import guided
from coldproof.harness.workload.generators.identities import AdapterAndSalt
from coldproof.harness.workload.generators.prompts import WorkloadLimits
from coldproof.harness.workload.steps import Burst, Prompt, Request, Route, Segment, SetAdapter, Step, Workload
from coldproof.harness.workload.tokens import NONCE_TOKENS, PART_SEPARATOR

LONGEST_SALT = 107  # characters: with the nonce less than the 128 that vLLM's server takes
SALT_LENGTHS = (4, 8, 9, 16, 17, 20, 32, 33, 64, 65, 100, LONGEST_SALT)
EXTENSION = 20  # characters that a second part adds, with its nonce
EDGES = (7, 8, 15, 16, 31, 32, 63, 64)  # characters at which a table or a cut key may end
LETTERS = "abcdefghijklmnopqrstuvwxyz"
NAMES = ("tenant", "Tenant", "tenant2")


@st.composite
def near_salts(draw: st.DrawFn) -> tuple[str, str]:
    """Draw two salts of up to 107 characters that differ in one place: at the start, the end, in between, in length,
    in case, or by the order of two characters; or one that is sent as the other one and more.
    """
    length = draw(st.sampled_from(SALT_LENGTHS))
    base = "".join(LETTERS[index % len(LETTERS)] for index in range(length))
    place = draw(st.sampled_from((length - 1, 0, length // 2, *(edge for edge in EDGES if edge < length))))
    match draw(st.sampled_from(("changed", "changed", "longer", "extended", "case", "swapped"))):
        case "extended":  # each part has its own nonce, so that all of the shorter one is the longer one's beginning
            short = base[: LONGEST_SALT - EXTENSION]
            return short, f"{short}{PART_SEPARATOR}x"
        case "longer":
            return base[:-1], base
        case "case":
            return base, base[:place] + base[place].upper() + base[place + 1 :]
        case "swapped":
            first = min(place, length - 2)
            return base, base[:first] + base[first + 1] + base[first] + base[first + 2 :]
    return base, f"{base[:place]}0{base[place + 1 :]}"


@st.composite
def identities(draw: st.DrawFn, limits: WorkloadLimits, *, adapters: bool) -> list[AdapterAndSalt]:
    """Draw two or three identities: almost equal salts, or adapters and the base model; perhaps adapters with salts."""
    salts = draw(near_salts()) if Capability.CACHE_SALT in limits.can else (None, None)
    if not adapters:
        return [(None, salts[0]), (None, salts[1]), *([(None, None)] if draw(st.booleans()) else [])]
    names = draw(st.permutations((*NAMES[: len(limits.contents)][: limits.slots], None)))[:3]
    if draw(st.sampled_from((False, False, True))):
        return [(name, salts[number % 2]) for number, name in enumerate(names)]
    return [(name, None) for name in names]


class CrossingBuilder:
    """The steps of a workload whose requests have several identities. `count`: how many requests there are so far."""

    def __init__(self, draw: st.DrawFn, limits: WorkloadLimits, known: list[AdapterAndSalt]) -> None:
        self.draw, self.limits, self.known = draw, limits, known
        names = dict.fromkeys(name for name, _ in known if name is not None)
        self.steps: list[Step] = [
            SetAdapter(name=name, content=content, path=f"files-{content}", route=Route.LOAD)
            for name, content in zip(names, limits.contents, strict=False)
        ]
        self.count = 0

    def send(self, identity: AdapterAndSalt, prompt: Prompt, tokens: int = 4) -> None:
        """Add a burst of one request."""
        self.send_all([self.request(identity, prompt, tokens)])

    def send_all(self, requests: list[Request]) -> None:
        """Add a burst."""
        self.steps.append(Burst(requests=tuple(requests)))
        self.count += len(requests)

    def request(self, identity: AdapterAndSalt, prompt: Prompt, tokens: int) -> Request:
        """Return a request with an identity."""
        return Request(prompt=prompt, adapter=identity[0], salt=identity[1], max_tokens=tokens)

    def pair(self) -> tuple[AdapterAndSalt, AdapterAndSalt]:
        """Draw two of the identities."""
        first, second, *_ = self.draw(st.permutations(self.known))
        return first, second

    def answered_then_continued(self, number: int) -> None:
        """Add an answer that fills blocks, behind a prompt of less than a block or more, and its next turn under
        another identity and under its own. Whoever computes the same tokens must not be given the other's blocks.
        """
        own, other = self.pair()
        unit = self.limits.unit
        length = self.draw(st.sampled_from((unit // 2, unit - 1, 1, 5, unit, 2 * unit + 5)))
        written = self.draw(st.sampled_from((unit, unit + 1, 2 * unit, 2 * unit + 1)))
        prompt = Prompt((Segment(f"short {number}", length),))
        first = self.count
        self.send(own, prompt, tokens=-(NONCE_TOKENS + length) % unit + written)
        turn = Prompt((Segment("turn", self.draw(st.sampled_from((5, unit)))),), continues=first)
        for identity in self.draw(st.sampled_from(((other, own), (own, other), (other, other, own)))):
            self.send(identity, turn)

    def long_prompts(self, number: int) -> None:
        """Add a long prompt under one identity, and the same in growing parts under another one."""
        own, other = self.pair()
        whole, parts = self.draw(long_and_parts(self.limits))
        whole = msgspec.structs.replace(whole, name=f"long {number}")
        self.send(own, Prompt((whole,)))
        for part in parts:
            self.send(other, Prompt((msgspec.structs.replace(whole, length=part), Segment("tail", 5))))
        self.send(other, Prompt((whole,)))

    def in_one_step(self, number: int) -> None:
        """Add equal prompts under several identities at once, cold or after one of them, and then one by one."""
        unit = self.limits.unit
        stem = Segment(f"stem {number}", self.draw(st.sampled_from((2, 3))) * unit + self.draw(st.sampled_from((0, 5))))
        known = self.draw(st.permutations(self.known))
        if self.draw(st.booleans()):
            self.send(known[0], Prompt((stem,)))
        together = [one for one in known if self.limits.may_run_beside(one[0], known[0][0])]
        sent = [*together, *together] if self.draw(st.booleans()) else together
        tail = self.draw(st.sampled_from((0, 5)))
        prompts = [Prompt((stem, Segment(f"tail {i}", tail))) if tail else Prompt((stem,)) for i in range(len(sent))]
        tokens = self.draw(st.sampled_from((4, 1, unit)))
        self.send_all([self.request(one, prompt, tokens) for one, prompt in zip(sent, prompts, strict=True)])
        for identity in known:
            self.send(identity, Prompt((stem,)))


@guided
@st.composite
def crossed(draw: st.DrawFn, limits: WorkloadLimits, *, adapters: bool) -> Workload:
    """Draw one or two parts of different kinds, all with the same identities: salts, or adapters and the base model."""
    builder = CrossingBuilder(draw, limits, draw(identities(limits, adapters=adapters)))
    kinds = (builder.answered_then_continued, builder.long_prompts, builder.in_one_step)
    for number, kind in enumerate(draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=2))):
        kind(number)
    return Workload(tuple(builder.steps))


@guided
@st.composite
def answers_then_turns(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw answers that fill blocks behind prompts of any length, and their next turns, all of one identity."""
    salted = Capability.CACHE_SALT in limits.can and draw(st.booleans())
    own: AdapterAndSalt = (None, draw(near_salts())[0] if salted else None)
    builder = CrossingBuilder(draw, limits, [own, own])
    for number in range(draw(st.sampled_from((1, 2)))):
        builder.answered_then_continued(number)
    return Workload(tuple(builder.steps))
