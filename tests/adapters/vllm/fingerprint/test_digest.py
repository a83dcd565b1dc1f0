"""The fingerprint worker's arithmetic, compared with a slow implementation, and its data."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coldproof.adapters.protocol.requests import ResponseOptions
from coldproof.adapters.vllm.fingerprint import digest
from coldproof.adapters.vllm.fingerprint.topology import (
    TOPOLOGIES,
    WORKER,
    LayerKind,
    Layers,
    group_shapes,
    read_topology,
    topology_flags,
)
from coldproof.harness.execution.oracles.closed_form import ClosedForm, computed
from coldproof.harness.judgement.oracle import Answer, Oracle, OracleError, Question

TOKENS = st.lists(st.integers(0, 259), min_size=1, max_size=200)
SEEDS = st.integers(0, digest.MASK)


def slow_chain(tokens: list[int], *, start: int, before: int, seed: int) -> list[int]:
    """Return the chain of digests, computed token by token in integers."""
    found = []
    for position, token in enumerate(tokens, start=start):
        before = digest.chain_one(token, position=position, before=before, seed=seed)
        found.append(before)
    return found


@settings(max_examples=60, deadline=None)
@given(tokens=TOKENS, start=st.integers(0, 10**6), before=SEEDS, seed=SEEDS)
def test_a_chunk_is_the_same_as_its_tokens_one_by_one(tokens: list[int], start: int, before: int, seed: int) -> None:
    """The fast version computes the recursion as a cumulative sum."""
    found = digest.chain(tokens, start=start, before=before, seed=seed)
    assert found.tolist() == slow_chain(tokens, start=start, before=before, seed=seed)


@settings(max_examples=60, deadline=None)
@given(tokens=TOKENS, cut=st.integers(0, 200), seed=SEEDS)
def test_chunks_follow_one_another(tokens: list[int], cut: int, seed: int) -> None:
    """The digests do not depend on how a prompt is cut into chunks."""
    cut = min(cut, len(tokens))
    whole = digest.chain(tokens, start=0, before=seed, seed=seed).tolist()
    first = digest.chain(tokens[:cut], start=0, before=seed, seed=seed).tolist() if cut else []
    before = first[-1] if first else seed
    rest = digest.chain(tokens[cut:], start=cut, before=before, seed=seed).tolist() if cut < len(tokens) else []
    assert first + rest == whole


@settings(max_examples=60, deadline=None)
@given(tokens=TOKENS, where=st.integers(0, 199), seed=SEEDS)
def test_one_token_changes_all_that_follow(tokens: list[int], where: int, seed: int) -> None:
    """All digests before the changed token stay the same."""
    where = min(where, len(tokens) - 1)
    other = [*tokens[:where], tokens[where] + 1, *tokens[where + 1 :]]
    left, right = (digest.chain(each, start=0, before=seed, seed=seed) for each in (tokens, other))
    assert (left == right).tolist() == [i < where for i in range(len(tokens))]


def test_swapped_neighbours_have_different_digests() -> None:
    """A digest is not only the sum of its tokens' values."""
    left, right = (slow_chain(each, start=0, before=1, seed=1)[-1] for each in ([5, 6, 7], [6, 5, 7]))
    assert left != right


def test_near_equal_contents_have_other_seeds() -> None:
    """Contents with similar names have different seeds, also those named like the base model or another version."""
    seeds = [
        digest.seed_of(*each)
        for each in ((None,), ("a",), ("A",), ("base",), (None, "1"), ("a", "1"), ("a, weights 1",))
    ]
    assert len(set(seeds)) == len(seeds)


def test_each_layer_has_its_own_key() -> None:
    """Each layer has its own key, so that a block of one layer is wrong in another."""
    assert len({digest.layer_key(i) for i in range(200)}) == 200


@settings(max_examples=60, deadline=None)
@given(found=SEEDS, expected=SEEDS, position=st.integers(0, 10**6))
def test_a_wrong_read_always_adds_something(found: int, expected: int, position: int) -> None:
    """A wrong read always changes the answer."""
    wrong = digest.wrong_read_drift(np.array([found], np.uint64), np.array([expected], np.uint64), np.array([position]))
    assert 0 < wrong <= digest.MASK


@settings(max_examples=60, deadline=None)
@given(state=SEEDS, rank=st.integers(0, digest.TOKENS - 1))
def test_scores_agree_with_ranks(state: int, rank: int) -> None:
    """A prompt token has the same score as it has as a candidate, and better ranks have higher scores."""
    number = digest.draw(state, seed=None, position=0)
    token = digest.token_at_rank(number, rank)
    assert digest.rank_of(number, token) == rank
    assert digest.prompt_logprob(state, token) == digest.logprob(number, rank)
    assert digest.logprob(number, rank) > digest.logprob(number, rank + 1)
    assert digest.FIRST_TOKEN <= token < digest.FIRST_TOKEN + digest.TOKENS


def test_the_best_scores_are_probabilities() -> None:
    """The probabilities of all candidates add up to at most one."""
    number = digest.draw(12345, seed=None, position=0)
    assert sum(np.exp(digest.logprob(number, rank)) for rank in range(digest.TOKENS)) <= 1


def test_sampled_answers_differ_by_seed_and_position() -> None:
    """Greedy answers depend on neither seed nor position."""
    drawn = {digest.draw(7, seed=seed, position=position) for seed in (0, 1) for position in (3, 4)}
    assert len(drawn) == 4
    assert digest.draw(7, seed=None, position=3) == digest.draw(7, seed=None, position=4)


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_a_topology_survives_the_command_line(name: str) -> None:
    """The topology is passed as JSON after the worker's name."""
    words = topology_flags(TOPOLOGIES[name])
    assert words[:2] == ["--worker-cls", WORKER]
    options = json.loads(words[3])
    assert read_topology(options["coldproof"]["topology"]) == TOPOLOGIES[name]
    assert ("--mamba-cache-mode" in words) is name.startswith("state")


def test_the_five_groups_of_the_field_report() -> None:
    """Blocks have 256, 64, 64, 4 and 8 tokens. The second kind has twice the layers, because groups have equal
    sizes.
    """
    rows = TOPOLOGIES["five-groups"]
    assert [(row.kind, row.block, row.window) for row in rows] == [
        (LayerKind.MLA, 256, None),
        (LayerKind.WINDOW_MLA, 64, 128),
        (LayerKind.WINDOW_MLA, 4, 8),
        (LayerKind.WINDOW_MLA, 8, 128),
    ]
    assert [row.layers // rows[0].layers for row in rows] == [1, 2, 1, 1]
    assert {group.block for group in group_shapes(rows, 32)} == {256, 64, 4, 8}


@pytest.mark.parametrize("rows", [[{"kind": "no such"}], "full", [{"kind": "full attention", "layers": 0}]])
def test_rows_that_are_no_topology(rows: object) -> None:
    """Such rows are refused with the reason."""
    with pytest.raises(ValueError, match="topology"):
        read_topology(rows)


@pytest.mark.parametrize(
    "facts", [{"kind": LayerKind.FULL, "window": 8}, {"kind": LayerKind.WINDOW}, {"kind": LayerKind.FULL, "block": 0}]
)
def test_layers_that_make_no_sense(facts: dict[str, Any]) -> None:
    """A window where none belongs, a missing window and an empty block are refused."""
    with pytest.raises(ValueError, match=r"layers"):
        Layers(**facts)


@pytest.mark.parametrize(
    ("row", "first"),
    [
        (Layers(kind=LayerKind.FULL), 0),
        (Layers(kind=LayerKind.WINDOW, window=64), 37),
        (Layers(kind=LayerKind.WINDOW, window=200), 0),
        (Layers(kind=LayerKind.STATE), 99),
    ],
)
def test_what_the_token_at_position_100_reads_first(row: Layers, first: int) -> None:
    """A window of 64 tokens covers the token itself and 63 before it; a state covers the last token only."""
    assert row.first_read(100) == first


def test_a_closed_form_answer_is_the_chain_continued() -> None:
    """Each token follows from the state before it, under the adapter's seed."""
    seed = digest.seed_of("content")
    states = slow_chain([40, 41, 42], start=0, before=seed, seed=seed)
    answer = computed(Question((40, 41, 42), "content", 3, ResponseOptions(prompt_logprobs=True)))
    for token in answer.tokens:
        assert token.id == digest.token_at_rank(digest.draw(states[-1], seed=None, position=0), 0)
        states = slow_chain(
            [40, 41, 42, *[t.id for t in answer.tokens][: len(states) - 2]], start=0, before=seed, seed=seed
        )
    assert answer.prompt_logprobs is not None
    assert answer.prompt_logprobs[0] is None
    assert len(answer.prompt_logprobs) == 3
    assert computed(Question((40, 41, 42), None, 3)).tokens != answer.tokens


class Cold(Oracle):
    """A cold engine, which may be wrong."""

    name = "cold-engine"

    def __init__(self, *, wrong: bool = False) -> None:
        self.wrong = wrong
        self.questions: list[Question] = []

    def ask(self, question: Question) -> Answer:
        """Record the question, and return the computed answer or that of the base model."""
        self.questions.append(question)
        return computed(Question(question.prompt, None, question.max_tokens) if self.wrong else question)


def test_a_worker_that_disagrees_with_the_closed_form_is_refused() -> None:
    """The closed form is compared with a cold engine before any warm engine is judged."""
    ClosedForm(Cold()).verify(["a", "b"])
    with pytest.raises(OracleError, match="disagree"):
        ClosedForm(Cold(wrong=True)).verify(["a", "b"])


@pytest.mark.parametrize(
    ("response_options", "uses_engine"),
    [
        (ResponseOptions(), False),
        (ResponseOptions(answers=2), False),
        (ResponseOptions(pattern="[ab]"), True),
        (ResponseOptions(stop=("a",)), True),
    ],
)
def test_a_cold_engine_answers_what_the_closed_form_cannot(
    response_options: ResponseOptions, uses_engine: bool
) -> None:
    """Grammars and stop strings are matched in text, so a cold engine answers those questions."""
    cold = Cold()
    ClosedForm(cold).ask(Question((40, 41), None, 3, response_options))
    assert bool(cold.questions) is uses_engine
