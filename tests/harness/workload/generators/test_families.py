"""The workloads of every family can be run, survive JSON, fit into the model and stay within their limits."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st
from support.drawn_workloads import LIMITS, any_at_all, few_examples, lengths, limits
from support.nightly import with_samples
from support.workload_families import FAMILIES, Family, computed

from coldproof.adapters.protocol.requests import ResponseOptions
from coldproof.harness.features.options.workloads import (
    PROMPT_LOGPROBS,
    SEVERAL_ANSWERS,
    STOP_STRINGS,
    STRUCTURED,
    with_response_options,
)
from coldproof.harness.workload.generators.chats import conversations, is_edited, trees
from coldproof.harness.workload.generators.prompts import ADAPTERS_TOGETHER, BASE_WITH_ADAPTER
from coldproof.harness.workload.generators.reuse import repeats, returns
from coldproof.harness.workload.steps import Burst, Request, Workload
from coldproof.harness.workload.tokens import new_prompt_length
from coldproof.harness.workload.validity import is_valid

UNBOUNDED = ("mixed", "never fitting")  # chapters of a mixed one are each as affordable as the others


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_is_valid_plain_data_that_fits_into_the_model(family: str) -> None:
    """This draws a sample within one set of limits."""
    check_workloads(family, "tight", examples=3)


@pytest.mark.nightly
@pytest.mark.parametrize("on", LIMITS)
@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_is_valid_plain_data_that_fits_within_all_limits(family: str, on: str) -> None:
    """Each run draws new examples."""
    check_workloads(family, on, examples=12)


def check_workloads(family: str, on: str, *, examples: int) -> None:
    """Check that workloads are valid, survive JSON, are affordable and fit, except for the one prompt that must not
    fit.
    """
    limited = LIMITS[on]
    bounded = on in ("tight", "roomy", "unknown pool") and family not in UNBOUNDED

    @settings(few_examples, max_examples=examples)
    @given(FAMILIES[family](limited))
    def check(workload: Workload) -> None:
        assert is_valid(workload)
        assert msgspec.json.decode(msgspec.json.encode(workload), type=Workload) == workload
        longest = sorted(lengths(workload))
        one_does_not_fit = family in ("never fitting", "sessions beyond the context")
        assert all(length <= limited.longest for length in (longest[:-1] if one_does_not_fit else longest))
        assert not bounded or computed(workload) <= limited.most_tokens

    check()


def turns(workload: Workload) -> list[tuple[Request, Request]]:
    """Return each next turn with the request that it continues."""
    sent = [request for _, _, request in workload.requests()]
    return [(r, sent[r.prompt.continues]) for r in sent if r.prompt.continues is not None]


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("family", [trees, conversations])
def test_chats_are_all_chats_and_begin_with_one_prelude(family: Family, chat: bool) -> None:
    """Otherwise no request is a chat. The prelude has at least one block, so that it can be hit."""

    @few_examples
    @given(family(LIMITS["roomy"], chat=chat))  # type: ignore[call-arg]
    def check(workload: Workload) -> None:
        sent = [request for _, _, request in workload.requests()]
        assert {request.chat for request in sent} == {chat}
        opened = [request.prompt.segments for request in sent if request.prompt.continues is None]
        assert {segments[0].name for segments in opened} == {"prelude"}
        assert all(len(segments) > 1 and segments[0].length >= 32 for segments in opened)

    check()


def has_branches(workload: Workload) -> bool:
    """Return whether two turns of different names continue one request."""
    named: dict[int | None, set[str]] = {}
    for turn, _ in turns(workload):
        named.setdefault(turn.prompt.continues, set()).add(turn.prompt.segments[0].name)
    return any(len(names) > 1 for names in named.values())


def has_edits(workload: Workload) -> bool:
    """Return whether a prelude was edited."""
    return any(is_edited(r) for _, _, r in workload.requests())


def is_concurrent(workload: Workload) -> bool:
    """Return whether some conversations run concurrently."""
    return any(isinstance(step, Burst) and len(step.requests) > 1 for step in workload.steps)


@pytest.mark.parametrize("wanted", [turns, has_branches, has_edits, is_concurrent])
def test_trees_have_turns_branches_edits_and_concurrency(wanted: Callable[[Workload], object]) -> None:
    """Each of these is drawn within the search."""
    assert wanted(find(trees(LIMITS["roomy"], chat=True), lambda w: bool(wanted(w)), settings=any_at_all))


@few_examples
@given(conversations(LIMITS["roomy"], chat=False))
def test_a_conversation_continues_answers_that_fill_a_block(workload: Workload) -> None:
    """Otherwise no next turn could hit what decode wrote."""
    assert turns(workload)
    assert any(before.max_tokens >= 32 for _, before in turns(workload))


def cuts(workload: Workload) -> list[Request]:
    """Return the turns that leave out the beginning of their history."""
    return [turn for turn, _ in turns(workload) if turn.prompt.start]


def test_a_conversation_may_be_cut_at_the_start_of_a_block() -> None:
    """The conversation then ends, and about half of it is left."""
    found = find(conversations(LIMITS["roomy"], chat=False), lambda w: bool(cuts(w)), settings=any_at_all)
    (cut,) = cuts(found)
    whole = lengths(found)[cut.prompt.continues or 0]
    assert cut == list(found.requests())[-1][2]
    assert cut.prompt.start % 32 == 0
    assert whole // 2 - 32 < cut.prompt.start <= whole // 2


@pytest.mark.parametrize(("on", "chat"), [("blocks of one", False), ("roomy", True)])
def test_chats_and_small_blocks_have_no_cut_histories(on: str, chat: bool) -> None:
    """A chat is sent as messages, and a prompt without the nonce could hit a small block of another run."""

    @few_examples
    @given(conversations(LIMITS[on], chat=chat))
    def check(workload: Workload) -> None:
        assert not cuts(workload)

    check()


def test_a_conversation_has_turns_with_large_blocks() -> None:
    """With blocks of 256 tokens and 2,048 tokens for a request, an answer of a block and a turn still fit."""
    large = limits(block=256, pool=100_000, most_tokens=12_000)
    found = find(conversations(large, chat=False), lambda w: bool(turns(w)), settings=any_at_all)
    assert all(before.max_tokens >= 256 for _, before in turns(found)[:1])


@few_examples
@given(repeats(LIMITS["roomy"]))
def test_repeats_send_one_prompt_alone_several_times(workload: Workload) -> None:
    """Two blocks are needed at least, because with one no hit would be required: the last token is always computed."""
    sent = [request for _, _, request in workload.requests()]
    assert len(sent) == len(workload.steps) >= 2
    assert len({request.prompt for request in sent}) == 1
    assert new_prompt_length(sent[0].prompt) > 32


@few_examples
@given(returns(LIMITS["roomy"]))
def test_returns_come_back_to_a_prompt_after_another_one(workload: Workload) -> None:
    """The order is A, A, B, A."""
    sent = [request.prompt for _, _, request in workload.requests()]
    assert sent[0] == sent[1] == sent[3] != sent[2]


@pytest.mark.parametrize("shares", [True, False])
def test_what_comes_between_shares_a_prelude_or_nothing(shares: bool) -> None:
    """Both are drawn."""

    def wanted(workload: Workload) -> bool:
        first, _, between, *_ = (request.prompt.segments[0] for _, _, request in workload.requests())
        return (first == between) is shares

    find(returns(LIMITS["roomy"]), wanted, settings=any_at_all)


@pytest.mark.parametrize(
    ("kind", "has"),
    [
        (PROMPT_LOGPROBS, lambda s: s.prompt_logprobs),
        (SEVERAL_ANSWERS, lambda s: s.answers > 1),
        (STOP_STRINGS, lambda s: bool(s.stop)),
        (STRUCTURED, lambda s: s.pattern is not None),
    ],
)
def test_response_options_are_requested_for_a_cached_prompt(
    kind: st.SearchStrategy[ResponseOptions], has: Callable[[ResponseOptions], bool]
) -> None:
    """The first and the third request are plain, and nothing of another kind is drawn."""

    @few_examples
    @given(with_response_options(LIMITS["roomy"], kind))
    def check(workload: Workload) -> None:
        first = [step.requests[0] for step in workload.steps if isinstance(step, Burst)]
        assert len({request.prompt for request in first}) == 1
        assert [has(request.options) for request in first[:3]] == [False, True, False]
        odd = [r.options for _, _, r in workload.requests() if not has(r.options)]
        assert set(odd) == {ResponseOptions()}

    check()


@pytest.mark.parametrize("forbidden", [BASE_WITH_ADAPTER, ADAPTERS_TOGETHER])
@pytest.mark.parametrize("family", with_samples([name for name in FAMILIES if name != "ground"], "mixed", "traffic"))
def test_no_burst_has_a_mixture_that_the_ground_rule_forbids(family: str, forbidden: str) -> None:
    """Only GROUND-1 draws such a mixture, because it has to measure it."""
    limited = LIMITS["roomy"]
    limited = msgspec.structs.replace(limited, mixtures=limited.mixtures - {forbidden})

    @few_examples
    @given(FAMILIES[family](limited))
    def check(workload: Workload) -> None:
        for step in workload.steps:
            models = {request.adapter for request in step.requests} if isinstance(step, Burst) else set()
            mixed = {
                BASE_WITH_ADAPTER: None in models and len(models) > 1,
                ADAPTERS_TOGETHER: len(models - {None}) > 1,
            }
            assert not mixed[forbidden]

    check()
