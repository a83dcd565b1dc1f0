"""Each generated workload has what it is generated for. Otherwise a whole kind of fault could not show."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import msgspec
import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from support.drawn_workloads import LIMITS, any_at_all, few_examples

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.harness.features.preemption.workloads import outgrowing_requests
from coldproof.harness.features.pressure.workloads import partly_evicted, prefix_sharers, queued_for_blocks
from coldproof.harness.features.resets.workloads import BEHIND, STAGES, aborts, changes_and_resets, resets
from coldproof.harness.features.salts.workloads import LIKE_AN_ADAPTER, LONGEST_SALT, NEARLY_EQUAL, salted
from coldproof.harness.features.tiers.load_workloads import aborted_loads, loaded_behind_hits, loads_by_share
from coldproof.harness.features.tiers.workloads import evicted_and_sent_again, first_block_changed
from coldproof.harness.judgement.evidence.cache import Control
from coldproof.harness.workload.generators.prompts import WorkloadLimits
from coldproof.harness.workload.generators.reuse import repeats
from coldproof.harness.workload.steps import Burst, Idle, Meanwhile, Request, Reset, SetAdapter, Step, Workload
from coldproof.harness.workload.tokens import new_prompt_length, segment_tokens, wire_name

TIGHT, ROOMY = LIMITS["tight"], LIMITS["roomy"]


def without(*capabilities: Capability) -> WorkloadLimits:
    """Return limits with a large pool, for an engine without these capabilities."""
    return msgspec.structs.replace(ROOMY, can=ROOMY.can - set(capabilities))


def requests_in(step: Step) -> list[Request]:
    """Return the requests of a step."""
    return list(step.requests) if isinstance(step, Burst) else []


def requests(workload: Workload) -> list[Request]:
    """Return all requests in order."""
    return [request for _, _, request in workload.requests()]


@few_examples
@given(salted(ROOMY, with_adapter=True))
def test_two_nearly_equal_salts_have_the_same_prompt(workload: Workload) -> None:
    """One of the pairs that a key may take for one salt is there, and with an adapter, the salt that is its name."""
    whom = {(r.adapter, r.salt) for r in requests(workload) if r.prompt == requests(workload)[0].prompt}
    assert any({(None, a), (None, b)} <= whom for a, b in NEARLY_EQUAL)
    loads = any(isinstance(step, SetAdapter) for step in workload.steps)
    assert (set(LIKE_AN_ADAPTER[0]) <= whom) is loads


@few_examples
@given(salted(ROOMY, with_adapter=True))
def test_a_server_takes_every_salt(workload: Workload) -> None:
    """The salt is checked with its nonce: a refusal would look like a fault."""
    salts = [wire_name(request.salt, "abcdef") for request in requests(workload) if request.salt is not None]
    assert all(len(salt) <= LONGEST_SALT and not set("@/\\\0") & set(salt) for salt in salts)


def test_the_first_workload_has_a_salt_like_an_adapter() -> None:
    """A run on a slow machine may draw few. Releases of vLLM with this collision then conformed by luck."""
    drawn: list[Workload] = []

    @settings(max_examples=1, database=None, phases=[Phase.generate])
    @given(salted(ROOMY, with_adapter=True))
    def first(workload: Workload) -> None:
        drawn.append(workload)

    first()
    whom = [(request.adapter, request.salt) for request in requests(drawn[0])]
    adapter, salt = LIKE_AN_ADAPTER[0]
    assert whom.index(adapter) < whom.index(salt)


def test_a_salt_can_be_another_one_and_an_adapter() -> None:
    """The salt is checked as it is sent: a key that joins a salt and an adapter takes them for another salt."""
    (adapter, salt), (_, both) = LIKE_AN_ADAPTER[1]
    assert adapter is not None
    assert salt is not None
    assert both is not None
    assert f"{wire_name(salt, 'n')}-{wire_name(adapter, 'n')}" == wire_name(both, "n")


@pytest.mark.parametrize(
    "wanted", [lambda r: bool(r.options.stop), lambda r: r.options.pattern, lambda r: r.options.answers > 1]
)
def test_salted_requests_have_response_options(wanted: Callable[[Request], bool]) -> None:
    """If the engine is capable of them, each kind is sent with a salt before a plain request for the same prompt
    without one.
    """

    def leaves_its_blocks(workload: Workload) -> bool:
        sent = requests(workload)
        first = next((n for n, r in enumerate(sent) if r.salt is not None and wanted(r)), None)
        return first is not None and any(r.salt is None and r.prompt == sent[first].prompt for r in sent[first + 1 :])

    find(salted(ROOMY, with_adapter=False, several=True), leaves_its_blocks, settings=any_at_all)


@few_examples
@given(st.booleans(), st.data())
def test_several_answers_are_requested_alone_and_only_if_chosen(several: bool, data: st.DataObject) -> None:
    """Suites with a second tier leave them out: vLLM 0.32.0 crashes on them if a prompt is computed in chunks."""
    workload = data.draw(salted(ROOMY, with_adapter=False, several=several))
    bursts = [requests_in(step) for step in workload.steps if any(r.options.answers > 1 for r in requests_in(step))]
    assert all(len(burst) == 1 for burst in bursts)
    assert several or not bursts


@few_examples
@given(salted(without(Capability.STOP_STRINGS, Capability.STRUCTURED_OUTPUT), with_adapter=False))
def test_requests_use_only_capabilities_of_the_engine(workload: Workload) -> None:
    """All requests are plain then."""
    assert all(r.options == r.options.__class__() for r in requests(workload))


def test_after_a_reset_a_part_is_sent_before_the_whole() -> None:
    """A last block that the reset left behind is looked up only when the blocks before it are cached again."""

    def part_then_whole(workload: Workload) -> bool:
        steps = workload.steps
        return any(
            isinstance(reset, Reset)
            and requests_in(part)
            and requests_in(whole)
            and requests_in(part)[0].prompt.segments[0].name == requests_in(whole)[0].prompt.segments[0].name
            and new_prompt_length(requests_in(part)[0].prompt) + 32 == new_prompt_length(requests_in(whole)[0].prompt)
            for reset, part, whole in zip(steps, steps[1:], steps[2:], strict=False)
        )

    find(resets(ROOMY), part_then_whole, settings=any_at_all)


@pytest.mark.parametrize("tier", [True, False])
def test_files_at_one_path_change_and_a_reset_follows(tier: bool) -> None:
    """Each prompt is then sent twice. If a second tier keeps what a reset removes, each content has its own path."""
    on = ROOMY if tier else without(Capability.SECOND_TIER)

    @few_examples
    @given(changes_and_resets(on))
    def check(workload: Workload) -> None:
        changes = [step for step in workload.steps if isinstance(step, SetAdapter)]
        assert len({change.content for change in changes}) == len(changes) > 1
        assert len({change.path for change in changes}) == (len(changes) if tier else 1)
        for change in changes[1:]:
            at = workload.steps.index(change)
            assert isinstance(workload.steps[at + 1], Reset)
            after = [requests_in(step)[0] for step in workload.steps[at + 2 : at + 5] if requests_in(step)]
            assert after.count(requests(workload)[0]) == 2

    check()


@few_examples
@given(prefix_sharers(TIGHT))
def test_one_of_two_prefix_sharers_continues_while_others_wait(workload: Workload) -> None:
    """The others need more than the pool, so that the blocks which the first request frees are allocated again."""
    first, second, *others = requests_in(workload.steps[0])
    assert first.prompt.segments[0] == second.prompt.segments[0]
    assert first.max_tokens != second.max_tokens
    assert sum(new_prompt_length(r.prompt) for r in others) > (TIGHT.pool or 0)


@few_examples
@given(queued_for_blocks(TIGHT))
def test_a_cached_prompt_waits_behind_those_that_evict_it(workload: Workload) -> None:
    """The growing requests fit into the pool at first, leave less than the prompt needs, and grow into the rest."""
    *growing, waits = requests_in(workload.steps[1])
    blocks = [-(-new_prompt_length(r.prompt) // 32) for r in growing]
    grown = [-(-(new_prompt_length(r.prompt) + r.max_tokens) // 32) for r in growing]
    pool = (TIGHT.pool or 0) // 32
    assert waits == requests_in(workload.steps[0])[0]
    assert sum(blocks) + -(-new_prompt_length(waits.prompt) // 32) > pool >= sum(grown) > sum(blocks)


@few_examples
@given(partly_evicted(TIGHT))
def test_a_part_of_a_long_prompt_is_evicted_before_it_is_repeated(workload: Workload) -> None:
    """Not all of it is evicted: the others leave room for its beginning."""
    first, *others, again = [request for step in workload.steps for request in requests_in(step)]
    pool = (TIGHT.pool or 0) // 32
    needed = [-(-(new_prompt_length(r.prompt) + r.max_tokens) // 32) for r in (first, *others)]
    assert again.prompt.segments[0] == first.prompt.segments[0]
    assert needed[0] >= pool // 2 - 1
    assert pool - 2 <= sum(needed) < pool + needed[0]


@pytest.mark.parametrize("wanted", [lambda r: r.adapter is not None, lambda r: r.options.pattern is not None])
@pytest.mark.parametrize("afterwards", [True, False])
def test_outgrowing_requests_use_adapters_and_patterns(wanted: Callable[[Request], bool], afterwards: bool) -> None:
    """Each is drawn within the search. A pattern is as long as its answer."""
    found = find(
        outgrowing_requests(TIGHT, afterwards=afterwards), lambda w: any(map(wanted, requests(w))), settings=any_at_all
    )
    assert isinstance(found.steps[-1], Idle)


@few_examples
@given(outgrowing_requests(without(Capability.ADAPTER_CHOICE, Capability.STRUCTURED_OUTPUT), afterwards=True))
def test_outgrowing_requests_use_neither_without_the_capability(workload: Workload) -> None:
    """Such requests go to the base model and are plain."""
    assert all(r.adapter is None and r.options.pattern is None for r in requests(workload))


@few_examples
@given(aborts(TIGHT))
def test_a_gap_follows_all_aborts(workload: Workload) -> None:
    """Nothing else shows a leak."""
    assert isinstance(workload.steps[-1], Idle)


def test_a_prompt_as_long_as_the_model_takes_is_repeated() -> None:
    """This is rare, because it costs as much as many other workloads."""
    found = find(repeats(ROOMY), lambda w: new_prompt_length(requests(w)[0].prompt) > 1500, settings=any_at_all)
    assert len(requests(found)) == 2


@few_examples
@given(first_block_changed(ROOMY))
def test_an_edit_of_the_first_block_comes_back(workload: Workload) -> None:
    """All tokens behind the block are those of the original."""
    first, near, again = requests(workload)
    one, other = (segment_tokens("n", r.prompt.segments[0]) for r in (first, near))
    assert near == again
    assert one[32:] == other[32:]
    assert one[:32] != other[:32]


@few_examples
@given(evicted_and_sent_again(TIGHT))
def test_other_prompts_fill_the_pool_between_two_equal_ones(workload: Workload) -> None:
    """The other prompts fill the whole pool, but for the last one, which may leave twice what this prompt takes."""
    own = min(new_prompt_length(requests_in(step)[0].prompt) for step in workload.steps[::2])
    *others, last = (new_prompt_length(requests_in(step)[0].prompt) for step in workload.steps[1::2])
    assert all(length > 490 for length in others)
    assert last > 490 - 2 * own


@pytest.mark.parametrize("leaves", [True, False])
def test_the_last_prompt_may_leave_a_part_of_the_pool(leaves: bool) -> None:
    """What it leaves is what the pool gives away next."""
    find(
        evicted_and_sent_again(TIGHT),
        lambda workload: (new_prompt_length(requests_in(workload.steps[-2])[0].prompt) < 490) is leaves,
        settings=any_at_all,
    )


@few_examples
@given(loaded_behind_hits(TIGHT))
def test_stems_are_sent_between_prompts_and_the_same_prompts_behind_holders(workload: Workload) -> None:
    """A stem is used last, and each prompt is a stem and more."""
    bursts = [requests_in(step) for step in workload.steps[:-1]]
    [together] = (asked for asked in bursts if len(asked) > 1)
    count = sum(len(one.prompt.segments) == 2 for one in together)
    whole, stems, again = ([asked[0] for asked in bursts[i : i + count]] for i in (0, count, 2 * count + 1))
    assert [one.prompt.segments[:1] for one in whole] == [one.prompt.segments for one in stems]
    assert together[-count:] == whole == again
    assert len(together) > count


def test_holders_leave_anything_from_nothing_to_half_of_the_pool() -> None:
    """Which blocks are given away next depends on it."""
    held: set[int] = set()

    @any_at_all
    @given(loaded_behind_hits(TIGHT))
    def draw(workload: Workload) -> None:
        [together] = (requests_in(step) for step in workload.steps if len(requests_in(step)) > 2)
        own = [one for one in together if len(one.prompt.segments) == 1]
        held.add(sum(one.prompt.segments[0].length for one in own) // TIGHT.unit)

    draw()
    assert {7, 8, 15, 16} <= held


def test_prompts_that_are_loaded_again_have_any_share_of_the_pool() -> None:
    """The shares are a quarter, half, a little more, and all of it. A load may be complete, partial or absent."""
    blocks: set[int] = set()
    remainders: set[int] = set()

    @any_at_all
    @given(loads_by_share(TIGHT))
    def draw(workload: Workload) -> None:
        length = new_prompt_length(requests_in(workload.steps[0])[0].prompt)
        blocks.add(-(-length // TIGHT.unit))
        remainders.add(length % 3)
        assert workload.steps[0] == workload.steps[2] == workload.steps[3]

    draw()
    assert {4, 8, 9, 10, 15} <= blocks
    assert remainders == {0, 1, 2}


@few_examples
@given(aborted_loads(TIGHT))
def test_an_aborted_request_was_sent_and_evicted_before(workload: Workload) -> None:
    """The request therefore waits for a load. It is sent again, and then the engine's usage is sampled."""
    for at, step in enumerate(workload.steps):
        for request in (r for r in requests_in(step) if r.abort is not None):
            plain = msgspec.structs.replace(request, abort=None)
            assert requests_in(workload.steps[at - 2]) == requests_in(workload.steps[at + 1]) == [plain]
            assert isinstance(workload.steps[at + 2], Idle)


def is_reset_under_load(step: Step) -> bool:
    """Return whether a step is a burst with a reset during it."""
    return (
        isinstance(step, Burst) and isinstance(step.meanwhile, Meanwhile) and isinstance(step.meanwhile.change, Reset)
    )


@pytest.mark.parametrize("on", [TIGHT, ROOMY])
def test_a_prompt_is_sent_before_and_after_each_reset(on: WorkloadLimits) -> None:
    """One reset comes while nothing runs, and one during an answer that is long enough for it. A part may be sent
    first.
    """

    @few_examples
    @given(resets(on))
    def check(workload: Workload) -> None:
        steps = workload.steps
        assert isinstance(steps[0], Burst)
        assert any(isinstance(step, Reset) for step in steps)
        assert any(is_reset_under_load(step) for step in steps)
        for at, (step, then) in enumerate(pairwise(steps)):
            if isinstance(step, Reset) or is_reset_under_load(step):
                assert then == steps[0] or (begins(then, steps[0]) and steps[at + 2] == steps[0])
            if isinstance(step, Burst) and step.meanwhile is not None:
                assert 0 < step.meanwhile.after_tokens < step.requests[0].max_tokens
        assert steps[0] in steps[2:4]

    check()


def begins(part: Step, whole: Step) -> bool:
    """Return whether a step requests the beginning of what another one requests."""
    assert isinstance(part, Burst)
    assert isinstance(whole, Burst)
    mine, all_of_it = (step.requests[0].prompt.segments[0] for step in (part, whole))
    return mine.name == all_of_it.name and mine.length < all_of_it.length


def test_what_a_trial_lacks_of_disconnects_is_named_as_the_evidence_is() -> None:
    """A name that no evidence has would never be drawn for."""
    known = {str(one) for one in Control} | {BEHIND}
    assert set(STAGES) <= known
