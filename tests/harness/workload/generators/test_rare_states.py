"""Each generator of rare states draws its states, and only runs with cheap examples draw any."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, find, given, settings
from hypothesis import strategies as st
from support.drawn_workloads import few_examples, limits, requests_of
from support.workload_families import FAMILIES, RARE

from coldproof.adapters.protocol.requests import Stage
from coldproof.harness.features.pressure.shared_workloads import VISITOR
from coldproof.harness.features.salts.crossed_workloads import LONGEST_SALT, near_salts
from coldproof.harness.workload.generators.edges import chunks_at_edges, leading_length, step_budget
from coldproof.harness.workload.generators.prompts import WorkloadLimits
from coldproof.harness.workload.generators.rare import with_rare
from coldproof.harness.workload.generators.reuse import repeats
from coldproof.harness.workload.steps import Burst, Reset, Route, SetAdapter, Workload
from coldproof.harness.workload.tokens import NONCE_TOKENS, new_prompt_length, wire_name

TIGHT, ROOMY = limits(pool=512, longest=512), limits(pool=100_000)
SEARCH = settings(few_examples, max_examples=4000, suppress_health_check=list(HealthCheck))
Predicate = Callable[[Workload], object]


def bursts(workload: Workload) -> list[Burst]:
    """Return the bursts of a workload."""
    return [step for step in workload.steps if isinstance(step, Burst)]


def crowd(workload: Workload) -> Burst:
    """Return the burst with the most requests."""
    return max(bursts(workload), key=lambda burst: len(burst.requests))


def identities(burst: Burst) -> set[tuple[str | None, str | None]]:
    """Return the adapters and salts of the requests."""
    return {(one.adapter, one.salt) for one in burst.requests}


def loads(workload: Workload) -> list[SetAdapter]:
    """Return the loads, in order."""
    return [step for step in workload.steps if isinstance(step, SetAdapter)]


def distances(workload: Workload) -> set[int]:
    """Return how many loads are between two requests of one name that must have different answers."""
    asked_after: list[tuple[int, str]] = []
    number = 0
    for load, then in pairwise(workload.steps):
        number += isinstance(load, SetAdapter)
        if isinstance(load, SetAdapter) and isinstance(then, Burst):
            asked_after.append((number, load.content))
    return {b - a for a, one in asked_after for b, other in asked_after if b > a and one != other}


def resets_until_repeat(workload: Workload) -> set[int]:
    """Return how many resets are between a prompt and its next request."""
    seen: dict[object, int] = {}
    found, number = set(), 0
    for step in workload.steps:
        number += isinstance(step, Reset)
        if isinstance(step, Burst):
            for one in step.requests:
                found.add(number - seen.get(one.prompt, number))
                seen[one.prompt] = number
    return found


def crossed_turns(workload: Workload) -> list[int]:
    """Return the lengths of prompts whose answer another identity continues."""
    requests = requests_of(workload)
    pairs = [(requests[r.prompt.continues], r) for r in requests if r.prompt.continues is not None]
    return [new_prompt_length(a.prompt) for a, b in pairs if (a.adapter, a.salt) != (b.adapter, b.salt)]


STATES: dict[str, tuple[str, WorkloadLimits, Predicate]] = {
    "equal prompts compete": (
        "pressure",
        TIGHT,
        lambda w: len({r.prompt for r in crowd(w).requests}) < len(crowd(w).requests),
    ),
    "exactly two share a head": (
        "pressure",
        TIGHT,
        lambda w: sum(r.prompt.segments[0].name == "head" for r in crowd(w).requests) == 2,
    ),
    "one of them begins with a hit": ("pressure", TIGHT, lambda w: len(bursts(w)[0].requests) == 1),
    "a guest wants one token": ("pressure", TIGHT, lambda w: any(r.max_tokens == 1 for r in crowd(w).requests)),
    "a sharer disconnects after its first token": (
        "aborts beside sharers",
        TIGHT,
        lambda w: any(
            one.abort is not None and one.abort.after_tokens == 1 and one.prompt.segments[0] == other.prompt.segments[0]
            for one, other in pairwise(crowd(w).requests[::-1])
        ),
    ),
    "one needs the whole pool": (
        "pressure",
        TIGHT,
        lambda w: any(new_prompt_length(r.prompt) + r.max_tokens == 512 for r in crowd(w).requests),
    ),
    "ten requests": ("pressure", TIGHT, lambda w: len(crowd(w).requests) >= 10),
    "two identities compete": ("pressure", TIGHT, lambda w: len(identities(crowd(w))) == 2),
    "a long prompt wants one token": (
        "pressure",
        TIGHT,
        lambda w: any(r.max_tokens == 1 and new_prompt_length(r.prompt) > 256 for r in crowd(w).requests),
    ),
    "the first grows while others wait with a hit": (
        "pressure",
        TIGHT,
        lambda w: (
            len(bursts(w)[0].requests) == 1
            and crowd(w).requests[0].max_tokens > 128
            and all(new_prompt_length(r.prompt) > 256 for r in crowd(w).requests)
        ),
    ),
    "a visitor returns to blocks that nobody holds": (
        "pressure",
        TIGHT,
        lambda w: (
            bursts(w)[0].requests[0].prompt.segments[0].name.startswith(VISITOR)
            and any(r.prompt.segments[0].name.startswith(VISITOR) for r in crowd(w).requests)
        ),
    ),
    "a short one holds one block until it ends": (
        "pressure",
        TIGHT,
        lambda w: any(
            new_prompt_length(a.prompt) + a.max_tokens == 32 and new_prompt_length(b.prompt) + b.max_tokens == 512
            for a, b in pairwise(crowd(w).requests)
        ),
    ),
    "the same prompt without its salt afterwards": (
        "pressure",
        TIGHT,
        lambda w: (
            {adapter for adapter, _ in identities(crowd(w))} == {"tenant"}
            and None not in {salt for _, salt in identities(crowd(w))}
            and identities(bursts(w)[-1]) == {("tenant", None)}
        ),
    ),
    "another identity asks afterwards": (
        "pressure",
        TIGHT,
        lambda w: identities(bursts(w)[-1]) == {(None, None)} and (None, None) not in identities(crowd(w)),
    ),
    "a client leaves a preempted request": (
        "pressure with disconnects",
        TIGHT,
        lambda w: any(r.abort and r.abort.at is Stage.PREEMPTED for r in crowd(w).requests),
    ),
    "whoever is preempted leaves": (
        "pressure with disconnects",
        TIGHT,
        lambda w: (
            len(crowd(w).requests) > 4 and all(r.abort and r.abort.at is Stage.PREEMPTED for r in crowd(w).requests[1:])
        ),
    ),
    "a sharer leaves at its first token": (
        "pressure with disconnects",
        TIGHT,
        lambda w: any(
            r.abort and r.abort.after_tokens == 1 and r.prompt.segments[0].name == "head" for r in crowd(w).requests
        ),
    ),
    "an answer is continued that its client left": (
        "pressure with disconnects",
        TIGHT,
        lambda w: any(
            r.prompt.continues is not None and requests_of(w)[r.prompt.continues].abort is not None
            for r in requests_of(w)
        ),
    ),
    "several resets of a burst": (
        "pressure with resets",
        TIGHT,
        lambda w: any(b.meanwhile and len(b.meanwhile.then) == 2 for b in bursts(w)),
    ),
    "sixteen loads apart": ("many loads", ROOMY, lambda w: 16 in distances(w)),
    "sixty-four loads apart": ("many loads", ROOMY, lambda w: 64 in distances(w)),
    "three loads and no request": (
        "loads without requests",
        ROOMY,
        lambda w: any(
            all(isinstance(s, SetAdapter) and s.route is Route.IN_PLACE for s in w.steps[i : i + 3])
            for i in range(1, len(w.steps) - 2)
        ),
    ),
    "a load while others run": (
        "loads beside others",
        ROOMY,
        lambda w: any(b.meanwhile and "tenant" not in {one.adapter for one in b.requests} for b in bursts(w)),
    ),
    "more adapters at once than slots": ("many names", ROOMY, lambda w: len(identities(crowd(w))) > ROOMY.slots),
    "thirty-three names": ("many names", ROOMY, lambda w: len({load.name for load in loads(w)}) == 33),
    "four resets": ("many resets", ROOMY, lambda w: 4 in resets_until_repeat(w)),
    "sixteen resets": ("many resets", ROOMY, lambda w: 16 in resets_until_repeat(w)),
    "seventeen sharers": ("side by side", ROOMY, lambda w: len(crowd(w).requests) == 17),
    "thirty-three sharers": ("side by side", ROOMY, lambda w: len(crowd(w).requests) == 33),
    "sixteen blocks of a neighbour": (
        "long neighbours",
        ROOMY,
        lambda w: any(
            r.prompt.segments[0].changed is not None and (r.prompt.segments[0].length + NONCE_TOKENS) // 32 == 16
            for r in requests_of(w)
        ),
    ),
    "a prompt of whole sixteen blocks": (
        "any length",
        ROOMY,
        lambda w: new_prompt_length(requests_of(w)[0].prompt) == 16 * 32 + 1,
    ),
    "another salt continues a short prompt": ("crossed salts", ROOMY, lambda w: min(crossed_turns(w), default=99) < 32),
    "another adapter continues an answer": ("crossed adapters", ROOMY, crossed_turns),
    "equal prompts of three identities": ("crossed adapters", ROOMY, lambda w: len(identities(crowd(w))) == 3),
    "two equal prompts are loaded": (
        "loaded together",
        TIGHT,
        lambda w: len({r.prompt for r in crowd(w).requests}) < len(crowd(w).requests),
    ),
    "a tier is reset twice while it stores": (
        "resets during stores",
        TIGHT,
        lambda w: any(b.meanwhile and b.meanwhile.then for b in bursts(w)),
    ),
}


@pytest.mark.parametrize("state", STATES)
def test_a_rare_state_is_drawn(state: str) -> None:
    """The generator for this state draws it."""
    family, on, wanted = STATES[state]
    assert wanted(find(FAMILIES[family](on), lambda workload: bool(wanted(workload)), settings=SEARCH))


def test_every_rare_generator_is_tested() -> None:
    """A new generator needs a state."""
    assert {family for family, _, _ in STATES.values()} | {"answers and turns", "chunks at edges"} == set(RARE)


def chunk_ends(budget: int, decoding: int, leader: int, victim: int) -> list[int]:
    """Return where the chunks of the second of two prompts end, in a scheduler that serves requests in order."""
    ends, written, left = [], 0, leader
    while written < victim:
        room = budget - decoding
        first = min(room, left) if left else 1  # then it decodes
        left = max(0, left - first)
        written = min(victim, written + room - first)
        ends.append(written)
    return ends


@pytest.mark.parametrize("budget", [24, 64])
@pytest.mark.parametrize("decoding", [0, 1, 2])
@pytest.mark.parametrize("blocks", [1, 2, 3])
@pytest.mark.parametrize("edge", [-1, 0, 1])
def test_a_chunk_ends_where_it_is_to_end(budget: int, decoding: int, blocks: int, edge: int) -> None:
    """An exception is a first prompt that would need fewer tokens than a nonce has."""
    end = blocks * 32 + edge
    leader = leading_length(budget - decoding, end)
    assert leader > NONCE_TOKENS
    assert end in chunk_ends(budget, decoding, leader, 160) or leader == NONCE_TOKENS + 1


def test_most_places_of_a_chunk_are_reached() -> None:
    """The places include a chunk of one token that fills a block, and a chunk that leaves one token of it missing."""
    on = msgspec.structs.replace(ROOMY, step=24)
    seen = set()

    @settings(SEARCH, max_examples=300)
    @given(chunks_at_edges(on))
    def draw(workload: Workload) -> None:
        for burst in bursts(workload)[::2]:
            *busy, leader, victim = burst.requests
            length = new_prompt_length(victim.prompt)
            ends = chunk_ends(24, len(busy), new_prompt_length(leader.prompt), length)
            for start, end in pairwise((0, *ends)):
                seen.add((end % 32, end - start == 1))

    draw()
    assert {(31, False), (0, False), (1, False), (0, True)} <= seen


def test_a_client_leaves_directly_after_a_chunk_that_lacks_a_token_of_its_block() -> None:
    """The prompt of the client continues behind that block."""
    on = msgspec.structs.replace(ROOMY, step=64)
    left = []
    for workload in drawn(chunks_at_edges(on, disconnects=True), examples=300):
        for *busy, leader, victim in (burst.requests for burst in bursts(workload)[::2]):
            ends = chunk_ends(64, len(busy), new_prompt_length(leader.prompt), new_prompt_length(victim.prompt))
            chunk = victim.abort.after_ms // 10 - 1 if victim.abort is not None else len(ends)
            left += [ends[chunk] % 32] if chunk < len(ends) - 1 else []
    assert left.count(31) > len(left) / 5


def test_the_budget_of_a_step_counts_if_it_divides_prompts() -> None:
    """Otherwise another number is as good."""
    assert step_budget(msgspec.structs.replace(ROOMY, step=24)) == 24
    assert step_budget(msgspec.structs.replace(ROOMY, step=4096)) == step_budget(ROOMY) == 64


@settings(SEARCH, max_examples=300)
@given(near_salts())
def test_near_salts_differ_and_every_server_takes_them(pair: tuple[str, str]) -> None:
    """They have few characters."""
    assert len(set(pair)) == 2
    assert max(map(len, pair)) <= LONGEST_SALT
    assert sum(a != b for a, b in zip(*pair, strict=False)) <= 2


@pytest.mark.parametrize(
    "wanted",
    [
        lambda a, b: len(a) > 64 and a[:64] == b[:64],
        lambda a, b: len(a) > 16 and a[1:] == b[1:],
        lambda a, b: b.startswith(a),
        lambda a, b: wire_name(b, "n").startswith(wire_name(a, "n")),
        lambda a, b: sorted(a) == sorted(b),
        lambda a, b: a == b.lower(),
    ],
)
def test_near_salts_differ_in_every_way(wanted: Callable[[str, str], bool]) -> None:
    """They differ at the end, at the start, in length, in order or in case."""
    assert wanted(*find(near_salts(), lambda pair: wanted(*pair), settings=SEARCH))


def drawn(strategy: st.SearchStrategy[Any], examples: int = 200) -> list[Any]:
    """Return what a strategy draws."""
    found: list[Any] = []

    @settings(SEARCH, max_examples=examples)
    @given(strategy)
    def draw(one: object) -> None:
        found.append(one)

    draw()
    return found


@pytest.mark.parametrize("cheap", [True, False])
def test_rare_states_are_drawn_only_where_examples_are_cheap(cheap: bool) -> None:
    """Usual workloads, which give the evidence, are drawn as well."""
    on = msgspec.structs.replace(ROOMY, rare=cheap)
    usual, rare = (st.just(Workload((Reset(),) * count)) for count in (1, 2))
    assert {len(one.steps) for one in drawn(with_rare(on, usual, rare))} == ({1, 2} if cheap else {1})


@pytest.mark.parametrize(("varied", "most"), [(False, 0), (True, 60)])
def test_a_few_variations_are_drawn_without_guidance(varied: bool, most: int) -> None:
    """The limits must request variations. A repeat has one prompt, and a variation may have more."""
    found = drawn(repeats(msgspec.structs.replace(ROOMY, varied=varied)))
    others = sum(len({request.prompt for request in requests_of(workload)}) > 1 for workload in found)
    assert bool(others) is varied
    assert others <= most
