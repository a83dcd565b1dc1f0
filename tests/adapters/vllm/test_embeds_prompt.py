"""Prompt embeddings in vLLM's form, and the engines that accept them."""

from __future__ import annotations

import pytest
import torch

from coldproof.adapters.common.row_values import row_values
from coldproof.adapters.protocol.embedding_rows import row_id
from coldproof.adapters.protocol.requests import CompletionRequest
from coldproof.adapters.registry import CELLS
from coldproof.adapters.vllm.cells.cell import IN_PROCESS, SERVER
from coldproof.adapters.vllm.inproc.request import embeds_prompt

WIDTH = 8
A, B = row_id("a"), row_id("b")


def request(*prompt: int, hidden: tuple[int, ...] = ()) -> CompletionRequest:
    return CompletionRequest(model="base", prompt=prompt, max_tokens=1, hidden=hidden)


def test_a_mixed_prompt_has_all_rows_all_ids_and_a_mask() -> None:
    """Each position has an embedding and a token id, also where the mask hides one of them."""
    found = embeds_prompt(request(40, A, 41, hidden=(B, 7, 0)), torch.bfloat16, WIDTH)
    assert found["prompt_token_ids"] == [40, 7, 41]
    assert found["prompt_is_token_ids"] == [True, False, True]
    assert found["prompt_embeds"].dtype is torch.bfloat16
    assert torch.equal(found["prompt_embeds"].float(), torch.from_numpy(row_values((B, A, 0), WIDTH)))


def test_a_cold_request_hides_nothing() -> None:
    """The oracle's question has what the model sees, with zeros elsewhere."""
    found = embeds_prompt(request(40, A), torch.float32, WIDTH)
    assert found["prompt_token_ids"] == [40, 0]
    assert not found["prompt_embeds"][0].any()


def test_a_prompt_of_rows_alone_has_no_ids() -> None:
    """A client of the completions endpoint sends embeddings alone."""
    assert list(embeds_prompt(request(A, B, hidden=(1, 2)), torch.float32, WIDTH)) == ["prompt_embeds"]


@pytest.mark.parametrize(
    ("cell", "worker"),
    [("embeds", "model"), ("embeds-tight", "model"), ("images", "fingerprint"), ("images-tight", "fingerprint")],
)
@pytest.mark.parametrize("engine", [IN_PROCESS, SERVER])
def test_both_adapters_run_the_cells_with_content(cell: str, worker: str, engine: str) -> None:
    """Both adapters send images and prompt embeddings."""
    assert CELLS[cell].fits(engine, worker)
