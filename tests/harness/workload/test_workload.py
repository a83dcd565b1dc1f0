"""A workload is plain data: it survives JSON, and its prompts share exactly what the names of their segments say."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.histories import ask, burst, put

from coldproof.adapters.protocol.requests import Abort, ResponseOptions, Stage
from coldproof.adapters.protocol.resets import ResetScope
from coldproof.adapters.protocol.restarts import EngineChange
from coldproof.harness.history.records import common_prefix
from coldproof.harness.workload.describe import describe
from coldproof.harness.workload.generators.prompts import ADAPTERS_TOGETHER, BASE_WITH_ADAPTER, WorkloadLimits
from coldproof.harness.workload.steps import (
    Burst,
    Idle,
    Meanwhile,
    Prompt,
    Request,
    Reset,
    Restart,
    Route,
    Segment,
    Step,
    Workload,
    lives_of,
)
from coldproof.harness.workload.tokens import (
    FIRST_TOKEN,
    LAST_TOKEN,
    NONCE_TOKENS,
    NONCES_APART,
    new_nonce,
    new_prompt_length,
    nonce_tokens,
    segment_tokens,
    text_of,
    wire_name,
)
from coldproof.harness.workload.validity import is_valid

LIMITS = WorkloadLimits(
    block=32, slots=4, contents=("A", "B"), mixtures=frozenset({ADAPTERS_TOGETHER, BASE_WITH_ADAPTER})
)
NAMES = st.text(max_size=8)
LENGTHS = st.integers(1, 80)


@given(NAMES, LENGTHS, LENGTHS)
def test_equal_names_share_as_far_as_the_shorter_reaches(name: str, one: int, other: int) -> None:
    """The tokens of a segment of one length are a prefix of those of a longer one."""
    left, right = segment_tokens("n", Segment(name, one)), segment_tokens("n", Segment(name, other))
    assert common_prefix(left, right) == min(one, other)
    assert {len(left), len(right)} == {one, other}


@given(st.lists(NAMES, min_size=2, max_size=2, unique=True))
def test_unequal_names_share_no_block(names: list[str]) -> None:
    """Thirty tokens of two segments agree in a few places by chance, but never in a block."""
    left, right = (segment_tokens("n", Segment(name, 30)) for name in names)
    assert common_prefix(left, right) < 8


@given(st.text(max_size=8), st.data(), LENGTHS)
def test_a_near_collision_changes_exactly_the_named_token(name: str, data: st.DataObject, length: int) -> None:
    """Always one token changes, and always to a different one, even if the draw would have repeated the old one."""
    place = data.draw(st.integers(0, length - 1))
    plain, near = segment_tokens("n", Segment(name, length)), segment_tokens("n", Segment(name, length, changed=place))
    assert [i for i in range(length) if plain[i] != near[i]] == [place]
    assert all(FIRST_TOKEN <= token <= LAST_TOKEN for token in near)


def test_a_changed_token_is_a_plain_one() -> None:
    """This holds for every token; the last of the range becomes the first."""
    segments = [Segment(f"s{i}", 1) for i in range(2000)]
    before = [segment_tokens("n", segment)[0] for segment in segments]
    after = [segment_tokens("n", msgspec.structs.replace(segment, changed=0))[0] for segment in segments]
    assert set(before) == set(after) == set(range(FIRST_TOKEN, LAST_TOKEN + 1))
    assert all(old != new for old, new in zip(before, after, strict=True))


@given(st.text(max_size=8), st.data(), st.integers(2, 80))
def test_swapped_tokens_change_places_and_nothing_else_does(name: str, data: st.DataObject, length: int) -> None:
    """The tokens are adjacent. A hash that ignores their order takes the segment for the unedited one."""
    place = data.draw(st.integers(0, length - 2))
    plain, near = segment_tokens("n", Segment(name, length)), segment_tokens("n", Segment(name, length, swapped=place))
    assert near == (*plain[:place], plain[place + 1], plain[place], *plain[place + 2 :])


@pytest.mark.parametrize(
    ("symbol", "wire"), [("red", "red-n"), ("red-tenant", "red-tenant-n"), ("red+tenant", "red-n-tenant-n")]
)
def test_a_symbol_of_two_parts_is_on_the_wire_what_the_parts_are(symbol: str, wire: str) -> None:
    """A hyphen stands between them, so a salt can be another salt, a hyphen and the name of an adapter."""
    assert wire_name(symbol, "n") == wire


def test_other_nonces_give_other_tokens() -> None:
    """Under two nonces neither the leading tokens nor those of a segment are equal."""
    nonces = [f"{i:06x}" for i in range(200)]
    assert len({nonce_tokens(nonce) for nonce in nonces}) == len(nonces)
    assert len({segment_tokens(nonce, Segment("stem", 20)) for nonce in nonces}) == len(nonces)
    assert nonce_tokens("n") == nonce_tokens("n")


def test_the_nonce_counts_where_a_prompt_starts_from_nothing() -> None:
    """A next turn already has its nonce."""
    segments = (Segment("a", 3), Segment("b", 4))
    assert new_prompt_length(Prompt(segments)) == NONCE_TOKENS + 7
    assert new_prompt_length(Prompt(segments, continues=0)) == 7


@pytest.mark.parametrize(
    ("smaller", "larger"),
    [
        (Workload((burst(ask(("s", 999)), ask()),)), Workload((burst(ask()), put("A")))),
        (Workload((burst(ask(("s", 999))),)), Workload((burst(ask(("s", 1)), ask(("s", 1))),))),
        (Workload((burst(ask(("s", 9))),)), Workload((burst(ask(("s", 10))),))),
        (Workload((burst(ask(max_tokens=7)),)), Workload((burst(ask(max_tokens=8)),))),
    ],
)
def test_fewer_steps_then_fewer_requests_then_fewer_tokens(smaller: Workload, larger: Workload) -> None:
    """The smaller workload is easier to read, in this order of importance."""
    assert smaller.size() < larger.size()


def test_requests_are_numbered_through() -> None:
    """Steps without requests take no number."""
    first, second, third = ask(("a", 1)), ask(("b", 1)), ask(("c", 1))
    workload = Workload((put("A"), burst(first, second), put("B"), burst(third)))
    assert list(workload.requests()) == [(0, 1, first), (1, 1, second), (2, 3, third)]


@pytest.mark.parametrize(
    ("step", "timed"),
    [
        (burst(ask()), False),
        (put("A"), False),
        (burst(ask(), ask()), True),
        (Burst(requests=(ask(),), meanwhile=Meanwhile(change=put("B"), after_tokens=1)), True),
        (Burst(requests=(ask(),), meanwhile=Meanwhile(change=Reset(), after_tokens=1)), True),
        (burst(ask(abort=Abort(after_tokens=1))), True),
        (burst(ask(chat=True, priority=3, options=ResponseOptions(answers=2))), False),
        (Reset(), False),
        (Idle(50), False),
    ],
)
def test_only_what_runs_side_by_side_or_is_cut_off_depends_on_timing(step: Step, timed: bool) -> None:
    """A workload without concurrency is deterministic and need not be tried twice."""
    assert Workload((step,)).depends_on_timing() is timed


def test_steps_are_described_in_words() -> None:
    """Names, paths, routes, salts, turns, delays and near-collisions all appear."""
    near = Prompt((Segment("stem", 40, changed=39),), continues=2)
    sent = Burst(
        requests=(Request(prompt=near, adapter="tenant", salt="red", max_tokens=5, offset_ms=20), ask()),
        meanwhile=Meanwhile(change=put("B", path="p", route=Route.IN_PLACE), after_tokens=3),
    )
    assert describe(sent, 4) == (
        "send 2 at once: request 4 to 'tenant' with salt 'red': "
        "[request 2 and its answer] + stem:40 (token 39 changed), 5 tokens, 20 ms later; "
        "request 5 to the base model: stem:40, 8 tokens; "
        "after 3 tokens in-place reload: adapter B as 'tenant' from path p"
    )
    assert describe(burst(ask()), 0) == "send: request 0 to the base model: stem:40, 8 tokens"
    assert str(ask(continues=2, cut=(7, None)).prompt) == "[request 2 and its answer][7:] + stem:40"
    assert str(ask(continues=2, cut=(0, 9)).prompt) == "[request 2 and its answer][0:9] + stem:40"
    assert str(Segment("stem", 40, changed=1, swapped=7)) == "stem:40 (token 1 changed, tokens 7 and 8 swapped)"
    changed = "restart the engine over the same storage; until now it had another KV format"
    assert describe(Restart(EngineChange.KV_FORMAT), 0) == changed
    both = Reset((ResetScope.RUNNING, ResetScope.SECOND_TIER))
    assert describe(both, 0) == "reset the prefix cache, running requests, the second tier"


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (ask(chat=True), "request 7 to the base model as a chat: stem:40, 8 tokens"),
        (ask(priority=-5), "priority -5"),
        (ask(abort=Abort(after_tokens=3)), "aborted after 3 tokens"),
        (ask(abort=Abort(after_ms=30)), "aborted after 30 ms"),
        (ask(abort=Abort(after_ms=9, at=Stage.PREFILL)), "aborted after 9 ms, once it is in prefill"),
        (ask(offset_ms=10, abort=Abort(after_ms=30)), "8 tokens, 10 ms later, aborted after 30 ms"),
        (ask(options=ResponseOptions(answers=3)), "3 answers"),
        (ask(options=ResponseOptions(stop=("a", "b"))), "stop at any of 'ab'"),
        (ask(options=ResponseOptions(pattern="[ab]{3}")), "matching [ab]{3}"),
        (ask(options=ResponseOptions(prompt_logprobs=True)), "with prompt logprobs"),
        (ask(options=ResponseOptions(logprobs=True)), "with logprobs"),
    ],
)
def test_a_request_is_described_with_all_its_options(request_: Request, words: str) -> None:
    """A report says it in a line, and the line of a plain request says nothing of it."""
    assert describe(burst(request_), 7).endswith(words)
    assert not describe(burst(ask()), 7).endswith(words)


@given(st.integers(1, 200))
def test_a_segment_makes_a_message_of_as_many_characters(length: int) -> None:
    """They are printable. How a tokenizer splits them is not tested here."""
    text = text_of(segment_tokens("n", Segment("s", length)))
    assert len(text) == length
    assert text.isascii()
    assert text.isprintable()


def test_the_latest_runs_of_an_engine_begin_with_different_tokens() -> None:
    """An engine that hits single tokens would take the first token of one run for that of another."""
    earlier: list[str] = []
    for _ in range(3 * NONCES_APART):
        earlier.append(new_nonce(earlier))
    begun = [nonce_tokens(nonce)[0] for nonce in earlier]
    assert all(len(set(begun[i : i + NONCES_APART])) == NONCES_APART for i in range(2 * NONCES_APART))
    assert len(set(earlier)) == len(earlier)


def test_a_restart_unloads_adapters() -> None:
    """A name has to be loaded again, and a reset names each scope once."""
    loaded, used = put("A"), burst(ask(adapter="tenant"))
    assert is_valid(Workload((loaded, used, Restart(), put("B"), used)))
    assert not is_valid(Workload((loaded, used, Restart(), used)))
    assert not is_valid(Workload((used, Reset((ResetScope.RUNNING, ResetScope.RUNNING)))))
    assert not is_valid(Workload((burst(ask()), Reset((ResetScope.RUNNING, ResetScope.RUNNING)))))
    assert is_valid(Workload((burst(ask()), Reset((ResetScope.RUNNING, ResetScope.SECOND_TIER)))))
    lives = lives_of(Workload((burst(ask()), Restart(EngineChange.ROPE), burst(ask()), Restart())))
    assert lives == [EngineChange.ROPE, EngineChange.NOTHING, EngineChange.NOTHING]
