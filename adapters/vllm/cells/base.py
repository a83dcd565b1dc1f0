"""Cells of one engine with full attention: its pool, its schedule, its blocks, its drafts."""

from __future__ import annotations

from coldproof.adapters.spec.cell import KEYS, ROOM
from coldproof.adapters.vllm.cells.cell import (
    CHUNK_OF_ONE,
    LAYOUT_AREAS,
    NARROW_CHUNKS,
    NOT_CHUNKED,
    RUNNER_V2,
    SMALL_CHUNKS,
    VllmCell,
    small_pool,
)

BASE_CELLS = (
    VllmCell(
        name="default",
        about="blocks of 32 tokens, a pool that never evicts, default scheduler",
        areas=(*KEYS, "WEIGHT", "ENTRY", "SESS-2"),
    ),
    VllmCell(
        name="weight-transfer",
        about="weights can be transferred, by a backend that reads them from a folder; a pool that never evicts",
        areas=("WEIGHT-1", "WEIGHT-3", "WEIGHT-4"),  # those in which the route makes a difference
        weight_transfer=True,
    ),
    VllmCell(
        name="tight",
        about="a pool of 16 blocks, prefill in chunks of at most 64 tokens, first come first served",
        arguments=small_pool(*SMALL_CHUNKS),
        areas=(*ROOM, "SESS-1"),
    ),
    VllmCell(
        name="tight-priority",
        about="a pool of 16 blocks, chunks smaller than a block, priority scheduling",
        arguments=small_pool(*NARROW_CHUNKS, "--scheduling-policy", "priority"),
        areas=("PREEMPT",),
    ),
    VllmCell(
        name="priority",
        about="priority scheduling, at most four running requests, the others wait; a pool that never evicts",
        arguments=("--scheduling-policy", "priority", "--max-num-seqs", "4"),
        areas=("CHAT", "REUSE"),  # MIXED-1 needs a pool that evicts
    ),
    VllmCell(
        name="tightest",
        about="a pool of 8 blocks: two requests fit",
        arguments=small_pool("--max-num-seqs", "4", blocks=9),
        areas=("PRESS", "PREEMPT", "MIXED"),
    ),
    VllmCell(
        name="two-at-a-time",
        about="at most two running requests, the others wait; a pool that never evicts",
        arguments=("--max-num-seqs", "2"),
        areas=("LORA-6", "CHAT-1", "REUSE", "CTRL-1"),
    ),
    VllmCell(
        name="small-chunks",
        about="prefill in chunks smaller than a block, a pool that never evicts",
        arguments=NARROW_CHUNKS,
        areas=("LORA-5", "CHAT", "REUSE", "SURFACE", "CTRL", "SESS-1"),
    ),
    VllmCell(
        name="chunks-side-by-side",
        about="at most 24 tokens of each prompt per step: other prompts are looked up between its chunks",
        arguments=(CHUNK_OF_ONE, "24", "--max-num-seqs", "8"),
        areas=("CHAT-1",),
    ),
    VllmCell(
        name="whole-prompts",
        about="no chunked prefill: a prompt is computed in one step",
        arguments=(NOT_CHUNKED,),
        areas=("CHAT", "REUSE", "SURFACE"),
    ),
    VllmCell(
        name="blocks-64",
        about="blocks of 64 tokens: the same workloads with other block boundaries",
        arguments=("--block-size", "64"),
        areas=LAYOUT_AREAS,
    ),
    VllmCell(name="blocks-128", about="blocks of 128 tokens", arguments=("--block-size", "128"), areas=LAYOUT_AREAS),
    VllmCell(
        name="hash-cbor",
        about="block hashes over CBOR (sha256_cbor), which other processes can reproduce",
        arguments=("--prefix-caching-hash-algo", "sha256_cbor"),
        areas=("LORA-1", "LORA-4", "SALT", "CHAT", "REUSE"),
    ),
    VllmCell(
        name="sync",
        about="synchronous scheduling: the scheduler waits for the tokens of each step (the CPU build always does)",
        arguments=("--no-async-scheduling",),
        areas=("LORA-6", "CHAT", "REUSE", "CTRL-1"),
    ),
    VllmCell(
        name="speculative",
        about="n-gram speculative decoding with a pool of 16 blocks",
        arguments=small_pool(
            "--speculative-config",
            # One equal token is enough for drafts. A model with random weights repeats no longer n-grams.
            '{"method":"ngram","num_speculative_tokens":3,"prompt_lookup_min":1,"prompt_lookup_max":4}',
        ),
        areas=("CHAT", "PRESS-1", "PREEMPT", "MIXED", "SPEC", "SESS-1"),
    ),
    VllmCell(
        name="speculative-model",
        about="speculative decoding with a draft model, which has layers of its own in the blocks; no evictions",
        arguments=("--max-model-len", "512"),
        areas=("SPEC", "CHAT"),
        draft_tokens=3,
    ),
    VllmCell(
        name="runner-v2",
        about="vLLM's model runner V2, the default on GPUs, with a pool of 16 blocks and small chunks",
        arguments=small_pool(*SMALL_CHUNKS),
        areas=("LORA-1", "SALT", "CHAT", "REUSE", "SESS-1", *ROOM),
        environment=RUNNER_V2,
        only_fingerprint=True,
        on_gpu=True,
    ),
)
