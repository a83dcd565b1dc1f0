"""Near-collisions are drawn where a key may miss them: at the ends and in the middle of blocks that are looked up."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import find, given
from hypothesis import strategies as st
from support.drawn_workloads import LIMITS, any_at_all, few_examples, lengths

from coldproof.adapters.protocol.endpoints import Endpoint
from coldproof.harness.features.endpoints.workloads import DELICATE, at_every_endpoint
from coldproof.harness.features.salts.workloads import LONGEST_SALT, salted
from coldproof.harness.workload.generators.chats import conversations, trees
from coldproof.harness.workload.steps import Prompt, Workload
from coldproof.harness.workload.tokens import NONCE_BYTES, NONCE_TOKENS, new_prompt_length, wire_name


def edits_in(workload: Workload) -> list[tuple[int, Prompt]]:
    """Return the place of each edit, counted from the first token of its prompt, with the prompt. Of two swapped
    tokens, the place is that of the first.
    """
    found = []
    for _, _, request in workload.requests():
        first = request.prompt.segments[0]
        place = first.changed if first.changed is not None else first.swapped
        if place is not None and request.prompt.continues is None:
            found.append((place + NONCE_TOKENS, request.prompt))
    return found


def edits_a_block(within: int) -> Callable[[Workload], bool]:
    """Return a function that says whether a token is changed at that place of a block, with more tokens behind the
    block.
    """
    return lambda workload: any(
        at % 32 == within and prompt.segments[0].changed is not None and new_prompt_length(prompt) > (at // 32 + 1) * 32
        for at, prompt in edits_in(workload)
    )


def swaps_within_a_block(workload: Workload) -> bool:
    """Return whether two tokens of one block are swapped."""
    return any(at % 32 < 31 and prompt.segments[0].swapped is not None for at, prompt in edits_in(workload))


def asks_an_edit_again(workload: Workload) -> bool:
    """Return whether a prompt that was edited before its last block is sent again."""
    edited = [prompt for at, prompt in edits_in(workload) if (at // 32 + 2) * 32 < new_prompt_length(prompt)]
    return len(set(edited)) < len(edited)


def answers_one_token_that_ends_a_block(workload: Workload) -> bool:
    """Return whether a request continues an answer of one token that ends a block."""
    before = lengths(workload)
    requests = {number: request for number, _, request in workload.requests()}
    goes_on = {r.prompt.continues for r in requests.values() if r.prompt.continues is not None}
    return any(requests[n].max_tokens == 1 and before[n] % 32 == 0 for n in goes_on)


@pytest.mark.parametrize("family", [trees(LIMITS["roomy"], chat=False), salted(LIMITS["roomy"], with_adapter=False)])
@pytest.mark.parametrize("wanted", [*map(edits_a_block, (0, 16, 31)), swaps_within_a_block])
def test_near_collisions_are_at_the_ends_and_in_the_middle_of_blocks(
    family: st.SearchStrategy[Workload], wanted: Callable[[Workload], bool]
) -> None:
    """A hash that leaves out one of these places still separates all other prompts."""
    find(family, wanted, settings=any_at_all)


def test_an_edited_prompt_comes_back() -> None:
    """Its blocks behind the edit are then cached twice, for two prefixes."""
    find(trees(LIMITS["roomy"], chat=False), asks_an_edit_again, settings=any_at_all)


def test_a_conversation_continues_a_single_token_that_ends_a_block() -> None:
    """The KV of this token has not been written."""
    find(conversations(LIMITS["roomy"], chat=False), answers_one_token_that_ends_a_block, settings=any_at_all)


@few_examples
@given(salted(LIMITS["tight"], with_adapter=True))
def test_in_a_small_pool_the_last_salt_is_sent_again_at_once(workload: Workload) -> None:
    """What was sent before it may be evicted, and a run would then show no hit under a salt."""
    single = [request for _, _, request in workload.requests()]
    order = [(request.adapter, request.salt) for request in single if request.prompt == single[0].prompt]
    again = next(at for at, identity in enumerate(order) if identity in order[:at])
    assert order[again][1] is not None
    assert all(salt is None for _, salt in order[order.index(order[again]) + 1 : again])


@pytest.mark.parametrize(
    "change",
    [
        str.casefold,
        str.upper,
        str.strip,
        lambda salt: unicodedata.normalize("NFC", salt),
        lambda salt: unicodedata.normalize("NFKD", salt.casefold()),
        lambda salt: salt.encode("ascii", "ignore").decode(),
        lambda salt: " ".join(salt.split()),
        lambda salt: salt[:100],
    ],
)
def test_any_change_of_a_salt_on_one_route_changes_the_delicate_one(change: Callable[[str], str]) -> None:
    """This holds for the salt as it is sent. The changed route then shares nothing with the others under this salt."""
    sent = wire_name(str(DELICATE[1]), "f" * 2 * NONCE_BYTES)
    assert change(sent) != sent
    assert len(sent) <= LONGEST_SALT


@given(workload=at_every_endpoint(LIMITS["roomy"], with_adapter=True))
def test_a_prompt_is_sent_again_by_every_route(workload: Workload) -> None:
    """With the same salt and adapter, so that a route that changes the salt loses the hit, and before that with others,
    so that a route that drops the salt may hit.
    """
    opening, *rest = [request for _, _, request in workload.requests()]
    again = [one for one in rest if one.prompt == opening.prompt]
    same = [one.endpoint for one in again if (one.salt, one.adapter) == (opening.salt, opening.adapter)]
    others = [one.endpoint for one in again if (one.salt, one.adapter) != (opening.salt, opening.adapter)]
    assert {opening.endpoint, *same} == {opening.endpoint, *others} == set(Endpoint)


def test_the_delicate_salt_is_sent_by_two_routes() -> None:
    """Many workloads do so, and this finds one."""
    find(
        at_every_endpoint(LIMITS["roomy"], with_adapter=False),
        lambda workload: len({r.endpoint for _, _, r in workload.requests() if r.salt == DELICATE[1]}) > 1,
        settings=any_at_all,
    )
