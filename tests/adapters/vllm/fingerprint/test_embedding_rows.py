"""How the fingerprint worker digests prompt embeddings, and the closed form of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from coldproof.adapters.common.row_values import row_values
from coldproof.adapters.protocol.embedding_rows import row_id
from coldproof.adapters.vllm.fingerprint.digest import row_digests
from coldproof.adapters.vllm.fingerprint.sequences import prompt_of
from coldproof.harness.execution.oracles.closed_form import ClosedForm, computed, leaves
from coldproof.harness.judgement.oracle import Answer, Oracle, OracleError, Question

WIDTH = 8
SEEN = (40, row_id("a"), row_id("b"), 41)
DIGESTS = row_digests(row_values(SEEN, WIDTH))


def new(*, tokens: list[int] | None, mask: list[bool] | None, dtype: torch.dtype = torch.float32) -> Any:
    """Return a request as vLLM's scheduler describes it."""
    embeds = torch.from_numpy(row_values(SEEN, WIDTH)).to(dtype)
    return SimpleNamespace(prompt_token_ids=tokens, prompt_embeds=embeds, prompt_is_token_ids=mask)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_worker_digests_what_the_model_gets(dtype: torch.dtype) -> None:
    """Embeddings are digested by value, in every number format, where the mask selects them. Elsewhere token ids
    count.
    """
    found = prompt_of(new(tokens=[40, 7, 8, 41], mask=[True, False, False, True], dtype=dtype))
    assert found == (40, DIGESTS[1], DIGESTS[2], 41) == leaves(SEEN, WIDTH)


def test_without_a_mask_all_positions_are_rows() -> None:
    """Embeddings of zeros count too."""
    assert prompt_of(new(tokens=None, mask=None)) == tuple(DIGESTS)


def test_a_prompt_of_tokens_is_as_it_was() -> None:
    """A vLLM without embeddings has no such fields."""
    assert prompt_of(SimpleNamespace(prompt_token_ids=[1, 2])) == (1, 2)
    assert leaves((1, 2), WIDTH) == (1, 2)


def test_a_row_that_differs_in_one_value_has_another_digest() -> None:
    """Equal embeddings have equal digests."""
    one, other, again = row_digests(row_values((row_id("a"), row_id("a", 3), row_id("a")), WIDTH))
    assert one != other
    assert one == again
    assert max(one, other) < 1 << 64


class Cold(Oracle):
    """A cold engine whose prompt embeddings have a width."""

    name = "cold-engine"

    def __init__(self, width: int) -> None:
        self.width = width

    def ask(self, question: Question) -> Answer:
        """Return the computed answer."""
        return computed(question, self.width)


def test_a_worker_that_sees_other_embeddings_is_refused() -> None:
    """The closed form is compared with a cold engine for prompt embeddings too."""
    ClosedForm(Cold(WIDTH), WIDTH).verify(["a"])
    with pytest.raises(OracleError, match="disagree"):
        ClosedForm(Cold(WIDTH + 1), WIDTH).verify(["a"])


def test_an_answer_depends_on_each_row() -> None:
    """An answer depends on each embedding and on its position."""
    prompts = [SEEN, (40, row_id("a"), row_id("b", 1), 41), (40, row_id("b"), row_id("a"), 41), (40, 7, 8, 41)]
    answers = {computed(Question(prompt, None, 12), WIDTH).ids for prompt in prompts}
    assert len(answers) == len(prompts)
    assert not np.array_equal(DIGESTS[1], DIGESTS[2])
