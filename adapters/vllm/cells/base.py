"""Cells of one engine with full attention: its pool, its schedule, its blocks, its drafts."""

from __future__ import annotations

from coldproof.adapters.protocol.cell_traits import CellTrait
from coldproof.adapters.vllm.cells.cell import (
    CHUNK_OF_ONE,
    COUNTED,
    EAGLE,
    IN_PRESSED_POOL,
    NARROW_CHUNKS,
    NOT_CHUNKED,
    RUNNER_V2,
    SMALL_CHUNKS,
    USUAL,
    VllmCell,
    small_pool,
)

BASE_CELLS = (
    VllmCell(
        name="default",
        about="blocks of 32 tokens, a pool that never evicts, default scheduler",
        traits=(*USUAL, "weight updates", "routes", "sessions up to the context"),
    ),
    VllmCell(
        name="weight-transfer",
        about="weights can be transferred, by a backend that reads them from a folder; a pool that never evicts",
        traits=("weight transfer",),
        weight_transfer=True,
    ),
    VllmCell(
        name="tight",
        about="a pool of 16 blocks, prefill in chunks of at most 64 tokens, first come first served",
        arguments=small_pool(*SMALL_CHUNKS),
        traits=(*IN_PRESSED_POOL, "sessions"),
    ),
    VllmCell(
        name="tight-priority",
        about="a pool of 16 blocks, chunks smaller than a block, priority scheduling",
        arguments=small_pool(*NARROW_CHUNKS, "--scheduling-policy", "priority"),
        traits=(CellTrait.PREEMPTION, "another implementation"),
        twin="tight-narrow",
    ),
    VllmCell(
        name="tight-narrow",
        about="a pool of 16 blocks, chunks smaller than a block, first come first served: the twin of tight-priority",
        arguments=small_pool(*NARROW_CHUNKS),
        traits=IN_PRESSED_POOL,
        on_request=True,
    ),
    VllmCell(
        name="priority",
        about="priority scheduling, at most four running requests, the others wait; a pool that never evicts",
        arguments=("--scheduling-policy", "priority", "--max-num-seqs", "4"),
        traits=COUNTED,
    ),
    VllmCell(
        name="tightest",
        about="a pool of 8 blocks: two requests fit",
        arguments=small_pool("--max-num-seqs", "4", blocks=9),
        traits=(CellTrait.SMALL_POOL, CellTrait.PREEMPTION, CellTrait.MIXTURES),
    ),
    VllmCell(
        name="two-at-a-time",
        about="at most two running requests, the others wait; a pool that never evicts",
        arguments=("--max-num-seqs", "2"),
        traits=(CellTrait.WAITING, CellTrait.HITS),
    ),
    VllmCell(
        name="small-chunks",
        about="prefill in chunks smaller than a block, a pool that never evicts",
        arguments=NARROW_CHUNKS,
        traits=(
            *COUNTED,
            CellTrait.NARROW_CHUNKS,
            CellTrait.RESPONSE_OPTIONS,
            CellTrait.RESETS,
            CellTrait.ABORTS,
            "sessions",
        ),
    ),
    VllmCell(
        name="chunks-side-by-side",
        about="at most 24 tokens of each prompt per step: other prompts are looked up between its chunks",
        arguments=(CHUNK_OF_ONE, "24", "--max-num-seqs", "8"),
        traits=(CellTrait.INTERLEAVED,),
    ),
    VllmCell(
        name="whole-prompts",
        about="no chunked prefill: a prompt is computed in one step",
        arguments=(NOT_CHUNKED,),
        traits=(*COUNTED, CellTrait.RESPONSE_OPTIONS),
    ),
    VllmCell(
        name="blocks-64",
        about="blocks of 64 tokens: the same workloads with other block boundaries",
        arguments=("--block-size", "64"),
        traits=(CellTrait.KV_LAYOUT,),
    ),
    VllmCell(
        name="blocks-128",
        about="blocks of 128 tokens",
        arguments=("--block-size", "128"),
        traits=(CellTrait.KV_LAYOUT,),
    ),
    VllmCell(
        name="hash-cbor",
        about="block hashes over CBOR (sha256_cbor), which other processes can reproduce",
        arguments=("--prefix-caching-hash-algo", "sha256_cbor"),
        traits=(*COUNTED, CellTrait.BLOCK_KEYS, CellTrait.ADAPTER_CHOICE, "another implementation"),
        twin="default",
    ),
    VllmCell(
        name="sync",
        about="synchronous scheduling: the scheduler waits for the tokens of each step (the CPU build always does)",
        arguments=("--no-async-scheduling",),
        traits=(*COUNTED, CellTrait.WAITING),
    ),
    VllmCell(
        name="speculative",
        about="n-gram speculative decoding with a pool of 16 blocks",
        arguments=small_pool(
            "--speculative-config",
            # One equal token is enough for drafts. A model with random weights repeats no longer n-grams.
            '{"method":"ngram","num_speculative_tokens":3,"prompt_lookup_min":1,"prompt_lookup_max":4}',
        ),
        traits=(
            "drafts",
            CellTrait.CONVERSATIONS,
            CellTrait.EVICTION,
            CellTrait.PREEMPTION,
            CellTrait.MIXTURES,
            "sessions",
        ),
    ),
    VllmCell(
        name="speculative-model",
        about="speculative decoding with a draft model, which has layers of its own in the blocks; no evictions",
        arguments=("--max-model-len", "512"),
        traits=("drafts", CellTrait.CONVERSATIONS),
        draft_tokens=3,
    ),
    VllmCell(
        name="speculative-eagle",
        about="speculative decoding with an EAGLE head, whose KV depends on one token more; no evictions",
        arguments=("--max-model-len", "512"),
        traits=("drafts", CellTrait.CONVERSATIONS),
        draft_tokens=3,
        drafter=EAGLE,
        only_fingerprint=True,
    ),
    VllmCell(
        name="runner-v2",
        about="vLLM's model runner V2, the default on GPUs, with a pool of 16 blocks and small chunks",
        arguments=small_pool(*SMALL_CHUNKS),
        traits=(*IN_PRESSED_POOL, *COUNTED, CellTrait.BLOCK_KEYS, "sessions", "another implementation"),
        environment=RUNNER_V2,
        twin="tight",
        only_fingerprint=True,
        on_gpu=True,
    ),
)
