"""Cells of several ranks, and of engines that compute prompts for others."""

from __future__ import annotations

from coldproof.adapters.vllm.cells.cell import (
    DATA_RANKS,
    LEASE,
    NO_ADAPTERS,
    NOT_CHUNKED,
    SMALL_CHUNKS,
    STAGES,
    TENSOR_RANKS,
    Variables,
    VllmCell,
    small_pool,
)
from coldproof.adapters.vllm.cells.tiers import LMCACHE_ENVIRONMENT


def rank_cell(name: str, about: str, *arguments: str, numeric: bool) -> VllmCell:
    """Return a cell of a server with several ranks."""
    return VllmCell(name=name, about=about, arguments=arguments, traits=("ranks",), numeric=numeric, in_process=False)


RANK_CELLS = (
    rank_cell(
        "dp2",
        "two ranks that serve whole requests, each with a cache (data parallel 2)",
        DATA_RANKS,
        "2",
        numeric=False,
    ),
    rank_cell("tp2", "each layer is spread over two ranks (tensor parallel 2)", TENSOR_RANKS, "2", numeric=True),
    VllmCell(
        name="pp2",
        about="each of two ranks has half of the layers (pipeline parallel 2); on a CPU vLLM 0.32.0 ends in eager mode",
        arguments=(STAGES, "2"),
        traits=("pipeline stages",),
        numeric=True,
        in_process=False,
        on_request=True,
    ),
)


def pair_cell(
    name: str,
    about: str,
    *arguments: str,
    traits: tuple[str, ...],
    tier: str | None = None,
    package: str | None = None,
    environment: Variables = (),
) -> VllmCell:
    """Return a cell of two servers: one computes prompts, the other one decodes. `tier`: both have it, and what one of
    them stores there, the other one finds; None: they transfer KV by NIXL."""
    return VllmCell(
        name=name,
        about=about,
        arguments=arguments,
        traits=traits,
        package="nixl" if tier is None else package,
        numeric=True,
        in_process=False,
        prefill_apart=True,
        tier=tier,
        environment=environment,
    )


def lmcache_pair_cell(
    name: str, about: str, *arguments: str, traits: tuple[str, ...], tier: str = "lmcache"
) -> VllmCell:
    """Return a cell of two servers that are clients of one LMCache server."""
    return pair_cell(
        name,
        f"two engines that share one LMCache server: one computes prompts, the other one decodes; {about}",
        *arguments,
        tier=tier,
        package="lmcache",
        environment=LMCACHE_ENVIRONMENT,
        traits=traits,
    )


PAIR_CELLS = (
    pair_cell(
        "prefill-decode",
        "one engine computes prompts, another one fetches their KV by NixlConnector and decodes",
        traits=("prefill apart", "failing pair"),
    ),
    pair_cell(
        "prefill-decode-tight",
        "prefill-decode with pools that one request of maximum length fills, chunks of 64 tokens",
        *small_pool(*SMALL_CHUNKS),
        traits=("prefill apart in small pools",),
    ),
    pair_cell(
        "prefill-decode-failures",
        "prefill-decode-tight in which the prefiller keeps what nobody has fetched for three seconds",
        *small_pool(*SMALL_CHUNKS),
        LEASE,
        "3",
        traits=("failing pair",),
    ),
    pair_cell(
        "prefill-decode-example",
        "two engines that share the folder of vLLM's ExampleConnector: one computes prompts, the other one decodes",
        NOT_CHUNKED,
        tier="example",
        traits=("prefill apart",),
    ),
    pair_cell(
        "prefill-decode-files",
        "two engines that share the files of vLLM's OffloadingConnector: one computes prompts, the other one decodes",
        tier="files-of-prompts",
        traits=("prefill apart",),
    ),
    lmcache_pair_cell("prefill-decode-lmcache", "pools that never evict", traits=("prefill apart",)),
    lmcache_pair_cell(
        "prefill-decode-lmcache-tight",
        "pools that one request of maximum length fills, chunks of 64 tokens, no adapters",
        *small_pool(*SMALL_CHUNKS, NO_ADAPTERS),
        traits=("prefill apart", "failing pair"),
    ),
    lmcache_pair_cell(
        "prefill-decode-lmcache-failures",
        "prefill-decode-lmcache-tight in which both look at the server each second",
        *small_pool(*SMALL_CHUNKS, NO_ADAPTERS),
        traits=("failing pair",),
        tier="lmcache-watched",
    ),
    lmcache_pair_cell(
        "prefill-decode-lmcache-files",
        "prefill-decode-lmcache-failures with memory for about 30 chunks and then files in a folder",
        *small_pool(*SMALL_CHUNKS, NO_ADAPTERS),
        traits=("prefill apart", "failing pair"),
        tier="lmcache-files-watched",
    ),
)
