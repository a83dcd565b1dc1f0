"""What a cell of vLLM says, and the flags that cells have in common."""

from __future__ import annotations

from coldproof.adapters.protocol.cell_traits import CellTrait
from coldproof.adapters.spec.cell import Cell
from coldproof.adapters.vllm.releases import is_cpu_build

SERVER, IN_PROCESS = "vllm", "vllm-inproc"  # both adapters start these cells
FINGERPRINT = "fingerprint"  # the name of the worker that computes digests instead of a model
MOST_REQUESTS, CHUNK_TOKENS = "--max-num-seqs", "--max-num-batched-tokens"
CHUNK_OF_ONE = "--long-prefill-token-threshold"
DATA_RANKS, TENSOR_RANKS, STAGES = "--data-parallel-size", "--tensor-parallel-size", "--pipeline-parallel-size"
LEASE = "--kv-lease"  # of a pair: how long the prefiller keeps what nobody has fetched (see prefill_decode.py)
Variables = tuple[tuple[str, str], ...]  # of the environment, with their values

# vLLM's default where Triton is usable, so on GPUs. Its scheduler describes resumed requests to the worker as new ones.
RUNNER_V1, RUNNER_V2 = ((("VLLM_USE_V2_MODEL_RUNNER", number),) for number in "01")


EAGLE, MTP = "eagle", "mtp"  # vLLM's names for heads that draft from the model's own states


class VllmCell(Cell, frozen=True, kw_only=True):
    """One configuration of vLLM. `in_process`: several engines of this cell can run side by side in this process."""

    in_process: bool = True
    topology: str = "full"  # the layers that the fingerprint worker declares: see fingerprint/topology.py
    tier: str | None = None  # the second KV tier: see adapters/vllm/kv_tiers.py
    numeric: bool = False  # tests the arithmetic of a model, which the fingerprint worker does not use
    events: bool = False  # the engine publishes KV events
    weight_transfer: bool = False  # with Coldproof's backend, which reads weights from a folder
    environment: Variables = ()  # variables, which replace the user's
    images: bool = False  # the model takes images; it has no weights
    draft_tokens: int = 0  # that a draft model proposes at once, which is the served model again
    drafter: str = "draft_model"  # the method; EAGLE and MTP with the fingerprint worker only: they have no weights
    prefill_apart: bool = False  # two servers: one computes prompts, the other one decodes (see prefill_decode.py)
    pools: bool = False  # the engine returns vectors, and no tokens
    only_fingerprint: bool = False  # no model that is small enough for a CPU runs in it
    on_gpu: bool = False  # but on a GPU, the generated model does
    engine: str = SERVER

    def obstacle(self, engine: str, worker: str) -> str:
        """Return why an engine with this worker cannot be started in this cell; an empty string if it can."""
        if self.only_fingerprint and worker != FINGERPRINT and not (self.on_gpu and not is_cpu_build()):
            return f"cell {self.name!r} runs no model on a CPU: add --worker fingerprint"
        if self.numeric and worker == FINGERPRINT:
            return f"cell {self.name!r} tests a model's arithmetic, and the fingerprint worker has none"
        if engine == IN_PROCESS and not self.in_process:
            return f"cell {self.name!r} needs a server: leave out --engine {IN_PROCESS}, or choose other cells"
        return "" if engine == IN_PROCESS else super().obstacle(engine, worker)

    @property
    def chunked(self) -> bool:
        """Return whether even a short prompt is computed in several steps."""
        return CHUNK_TOKENS in self.arguments or CHUNK_OF_ONE in self.arguments

    @property
    def most_requests(self) -> int | None:
        """Return the maximum number of running requests; None if the flags do not set it."""
        return self.number(MOST_REQUESTS)

    @property
    def model_ranks(self) -> int:
        """Return the number of ranks over which the model is spread."""
        return (self.number(TENSOR_RANKS) or 1) * (self.number(STAGES) or 1)

    def number(self, flag: str) -> int | None:
        """Return the number that follows a flag; None without the flag."""
        words = list(self.arguments)
        return int(words[words.index(flag) + 1]) if flag in words else None


SMALL_CHUNKS = (CHUNK_TOKENS, "64")
NOT_CHUNKED = "--no-enable-chunked-prefill"
NARROW_CHUNKS = (CHUNK_TOKENS, "24", MOST_REQUESTS, "8")  # smaller than a block
NO_ADAPTERS = "--no-enable-lora"  # LMCache's keys have no adapter, so that adapters would hide all other causes
# A small pool, but for sessions.
IN_PRESSED_POOL = (
    CellTrait.SMALL_POOL,
    CellTrait.PREEMPTION,
    CellTrait.MIXTURES,
    CellTrait.RESETS,
    CellTrait.ABORTS,
)
# A pool that never evicts, with all else by default.
USUAL = (
    CellTrait.PLAIN,
    CellTrait.BLOCK_KEYS,
    CellTrait.ADAPTERS,
    CellTrait.RESETS,
    "sessions",
)
COUNTED = (CellTrait.CONVERSATIONS, CellTrait.HITS)  # a pool that never evicts, with something changed


def window_pool(blocks: int) -> tuple[str, ...]:
    """Return flags for the layers of the topology `window`. Two long requests fill 60 blocks, one fills 32."""
    return ("--max-model-len", "512", "--num-gpu-blocks-override", str(blocks), *SMALL_CHUNKS)


def small_pool(*arguments: str, blocks: int = 17) -> tuple[str, ...]:
    """Return flags for a pool of `blocks` (including vLLM's null block) that one request of maximum length fills."""
    return ("--num-gpu-blocks-override", str(blocks), "--max-model-len", str((blocks - 1) * 32), *arguments)
