"""The cells of SGLang on a CPU. A word NAME=VALUE is a variable of the server, and no flag."""

from __future__ import annotations

from coldproof.adapters.protocol.cell_traits import CellTrait
from coldproof.adapters.sglang.setup import CHUNK, CONTEXT, IN_TURN, PAGE, POOL
from coldproof.adapters.spec.cell import Cell

USUAL = (
    CellTrait.PLAIN,
    CellTrait.HITS,
    CellTrait.CONVERSATIONS,
    CellTrait.BLOCK_KEYS,
    CellTrait.ADAPTERS,
    CellTrait.ADAPTER_CHOICE,
    CellTrait.RESETS,
    CellTrait.RESPONSE_OPTIONS,
    "sessions",
    "sessions up to the context",
    "weight updates",
    "routes",
)
SMALL_POOL = (
    CellTrait.SMALL_POOL,
    CellTrait.EVICTION,
    CellTrait.MIXTURES,
    CellTrait.WAITING,
    CellTrait.ABORTS,
    CellTrait.CONVERSATIONS,
)
PREEMPTION = (CellTrait.PREEMPTION, CellTrait.INTERLEAVED, *SMALL_POOL)
HITS = (CellTrait.HITS, CellTrait.CONVERSATIONS, CellTrait.BATCHES, CellTrait.KV_LAYOUT)
CHUNKS = (CHUNK, "64")
# A request never fills the pool: such a request is accepted and never admitted (sglang#39271), which PRESS-4 finds in
# the other cells.
SHORT = (CONTEXT, "700")
RETRACTS = ("SGLANG_TEST_RETRACT=1", "--enable-mixed-chunk")
# A hash of token, position and predecessor for each slot, and of the slot's KV. Each step checks what it reads, and
# every fourth one the whole tree. What does not fit ends the server.
# Some of its kernels are Triton's alone.
CANARY = (
    "SGLANG_KV_CANARY_ENABLE_VERIFY_TOKEN_ASSERT=1",
    "TRITON_INTERPRET=1",
    *("--kv-canary", "raise", "--kv-canary-real-data", "all", "--kv-canary-sweep-interval", "4"),
)


def cell(name: str, about: str, *flags: str, traits: tuple[str, ...] = USUAL, on_request: bool = False) -> Cell:
    """Return a cell with these flags."""
    return Cell(name=name, about=about, arguments=flags, traits=traits, engine="sglang", on_request=on_request)


CELLS = (
    cell("sglang-pages", "pages of 16 tokens, a pool of 8,192 tokens, no overlapped schedule", IN_TURN),
    cell("sglang-tight", "a pool of 1,024 tokens, chunks of 64", IN_TURN, POOL, "1024", *CHUNKS, traits=SMALL_POOL),
    cell(
        "sglang-retract",
        "a pool of 1,024 tokens, chunks of 64 mixed with decode, forced retractions",
        *(IN_TURN, POOL, "1024", *CHUNKS, *SHORT, *RETRACTS),
        traits=PREEMPTION,
    ),
    cell("sglang-tokens", "pages of one token, a pool of 1,500", IN_TURN, PAGE, "1", POOL, "1500", traits=SMALL_POOL),
    cell("sglang-overlapped", "the overlapped schedule, chunks of 64", *CHUNKS, traits=HITS),
    cell(
        "sglang-tier",
        "a pool of 1,024 tokens, with three times as much in host memory",
        *(IN_TURN, POOL, "1024", *CHUNKS, *SHORT, "--enable-hierarchical-cache", "--hicache-ratio", "3"),
        traits=(CellTrait.SECOND_TIER, *SMALL_POOL),
    ),
    cell(
        "sglang-canary",
        "SGLang's own check of the KV that each step reads, a pool of 1,024 tokens, forced retractions",
        *(IN_TURN, POOL, "1024", *CHUNKS, *SHORT, *RETRACTS, *CANARY),
        traits=PREEMPTION,
        on_request=True,  # half a second for each step
    ),
)
PROFILES = {"smoke": {"model": ("sglang-pages", "sglang-tight", "sglang-retract")}}
