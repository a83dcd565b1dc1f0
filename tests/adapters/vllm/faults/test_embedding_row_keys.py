"""Each fault of keys for prompt embeddings gives two prompts one key that vLLM distinguishes. No engine is started."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.faults import plant

from coldproof.adapters.common.row_values import row_values
from coldproof.adapters.protocol.embedding_rows import row_id
from coldproof.adapters.vllm.inproc import setup
from coldproof.adapters.vllm.inproc.process import vllm_module

pytestmark = pytest.mark.engine
BLOCK, WIDTH = 8, 16
TOKENS = list(range(40, 40 + BLOCK))
ROWS = [row_id(f"{place}") for place in range(BLOCK)]
SHOWN = (2, 3, BLOCK - 1)  # the positions at which the model gets the row


def fields_of(
    *, rows: list[int] = ROWS, shown: tuple[int, ...] = SHOWN, salt: str | None = None, adapter: str | None = None
) -> dict[str, Any]:
    """Return the fields of a request for one block."""
    lora = None
    if adapter is not None:
        lora = vllm_module("lora.request").LoRARequest(lora_name=adapter, lora_int_id=1, lora_path=f"/{adapter}")
    return {
        "prompt_token_ids": TOKENS,
        "prompt_embeds": torch.from_numpy(row_values(rows, WIDTH)),
        "prompt_is_token_ids": [place not in shown for place in range(BLOCK)],
        "cache_salt": salt,
        "lora_request": lora,
    }


def key(fields: dict[str, Any]) -> bytes:
    """Return vLLM's key of the block."""
    utils, hashing = vllm_module("v1.core.kv_cache_utils"), vllm_module("utils.hashing")
    utils.init_none_hash(hashing.sha256)
    sampling = vllm_module("sampling_params").SamplingParams(max_tokens=1)
    hasher = utils.get_request_block_hasher(BLOCK, hashing.sha256)
    made = vllm_module("v1.request").Request(
        request_id="r", sampling_params=sampling, pooling_params=None, block_hasher=hasher, **fields
    )
    (found,) = made.block_hashes
    return bytes(found)


def with_row(place: int, row: int) -> list[int]:
    """Return the rows with another one at a position."""
    return [*ROWS[:place], row, *ROWS[place + 1 :]]


def swapped() -> list[int]:
    """Return the rows with the first two shown ones in another order."""
    return [ROWS[3] if place == 2 else ROWS[2] if place == 3 else row for place, row in enumerate(ROWS)]


PAIRS = {
    "rows-are-not-hashed": lambda: (fields_of(), fields_of(rows=with_row(3, row_id("other")))),
    "half-of-each-row-is-hashed": lambda: (fields_of(), fields_of(rows=with_row(3, row_id("3", 1)))),
    "the-last-row-of-a-block-is-not-hashed": lambda: (
        fields_of(),
        fields_of(rows=with_row(BLOCK - 1, row_id("other"))),
    ),
    "rows-are-hashed-as-their-sum": lambda: (fields_of(), fields_of(rows=swapped())),
    "the-mask-is-not-hashed": lambda: (fields_of(), fields_of(shown=(2, 4, BLOCK - 1))),
    "a-salt-is-dropped-from-rows": lambda: (fields_of(salt="red"), fields_of(salt="blue")),
    "hashes-of-rows-lack-the-adapter": lambda: (fields_of(adapter="a"), fields_of()),
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_fault_confuses_two_prompts_that_vllm_distinguishes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """This shows that the fault acts as its description says."""
    with setup.LOCK, setup.start_environment():
        one, other = PAIRS[name]()
        assert key(one) == key(one)
        assert key(one) != key(other)
        plant(name, monkeypatch)
        assert key(one) == key(other)
