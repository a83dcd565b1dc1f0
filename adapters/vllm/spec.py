"""Engine specifications of vLLM's OpenAI-compatible server (`vllm`) and of its in-process core (`vllm-inproc`)."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

import msgspec

from coldproof.adapters.common import image_model as images
from coldproof.adapters.common.process import free_port
from coldproof.adapters.common.score_noise import VARIABLE
from coldproof.adapters.protocol.cell_traits import CellTrait
from coldproof.adapters.protocol.engine import Engine, EngineStartError
from coldproof.adapters.protocol.restarts import EngineChange
from coldproof.adapters.protocol.shape import EngineShape, GroupShape
from coldproof.adapters.protocol.weights import WeightPolicy
from coldproof.adapters.server.probes import CACHE_CONFIG, ProbeResult
from coldproof.adapters.spec.cell import CHUNKS, POOL, TIER, Cell, EngineVariant, ModelLayers
from coldproof.adapters.spec.engine_spec import MODEL, EngineSpec, FaultCatalogue, RepairSupport, StartOptions
from coldproof.adapters.spec.layer import EXACT_LAYER, MODEL_LAYER, Layer
from coldproof.adapters.spec.release_package import ReleasePackage
from coldproof.adapters.spec.weight_promise import WeightPromise
from coldproof.adapters.vllm import repairs, reproducer, server
from coldproof.adapters.vllm.cells.cell import (
    CHUNK_OF_ONE,
    CHUNK_TOKENS,
    FINGERPRINT,
    IN_PROCESS,
    RUNNER_V1,
    RUNNER_V2,
    SERVER,
    VllmCell,
)
from coldproof.adapters.vllm.cells.crossed import CROSSINGS
from coldproof.adapters.vllm.cells.every import CELLS
from coldproof.adapters.vllm.cells.groups import STATE_BLOCK
from coldproof.adapters.vllm.connector_kit import connector_run
from coldproof.adapters.vllm.draft_heads import FAMILIES, draft_head
from coldproof.adapters.vllm.faults import plugin
from coldproof.adapters.vllm.faults.patching import MARKERS_VARIABLE
from coldproof.adapters.vllm.field_cells import FIELD_CELLS
from coldproof.adapters.vllm.fingerprint.topology import TOPOLOGIES
from coldproof.adapters.vllm.flags import DRAFTS_FLAG, split_flag
from coldproof.adapters.vllm.forked import preload
from coldproof.adapters.vllm.inproc import engine as vllm_inproc
from coldproof.adapters.vllm.kv_tiers import GIVEN, NOT_USED, TRANSFER_FLAG, given_tier, tier_and_rest
from coldproof.adapters.vllm.plugins import install_noise, register_plugin
from coldproof.adapters.vllm.profiles import PROFILES
from coldproof.adapters.vllm.releases import is_cuda_build, package
from coldproof.adapters.vllm.switches import SWITCHES

# Of the generated models, because no metric reports them: a window in each of five layers of the Gemma 3 model, and
# full attention; the states of the Granite 4 model, and full attention.
GENERATED_GROUPS = {
    ModelLayers.WINDOW: 6 * (GroupShape(server.BLOCK),),
    ModelLayers.STATE: 2 * (GroupShape(STATE_BLOCK),),
}
HASH, DRAFTS, ASYNC, GRAPHS = "this hash algorithm", "speculative decoding", "async scheduling", "compiled graphs"
RUNNER, NO_DRAFTS = "model runner V2", "no speculative decoding"
POOL_FLAG, HASH_FLAG = "--num-gpu-blocks-override", "--prefix-caching-hash-algo"
ROOMY_BLOCKS = 2048
# Where numbers matter: batch invariance, log probabilities, vision.
NUMERIC_TRAITS = (
    CellTrait.BATCHES,
    CellTrait.RESPONSE_OPTIONS,
    "images",
    "images in a small pool",
    "image caches",
)
NUMERIC_CELLS = ("bfloat16", "images-model", "images-model-tight")
SHA256, CBOR = "sha256", "sha256_cbor"  # hash algorithms; sha256 is vLLM's default
WEIGHTS = WeightPromise(
    policy=WeightPolicy.ON_RESET,
    caller="after an update, call /reset_prefix_cache until it reports success, or update during "
    "/pause?clear_cache=true or after /sleep?level=1; with images, also call /reset_encoder_cache after an update",
    link="https://docs.vllm.ai/en/latest/training/async_rl/",
)
Started = TypeVar("Started", bound=Engine)


def publishes_cache_config(config: Mapping[str, str]) -> bool:
    """Return whether a server publishes vLLM's metrics of its cache. The probes of any server look for them."""
    return any(name.startswith(CACHE_CONFIG) for name in config)


def start_server(options: StartOptions) -> Engine:
    """Start a server. Only the first server of each kind in a run is probed; the others reuse its probe result."""
    kind = (options.cell, options.caching)
    port, arguments = split_port(options.arguments)
    port = port if options.tested else None
    settings = vllm_options(options, arguments, probed=options.remembered.get(kind), port=port)
    engine = with_fault(lambda: server.spawn(settings, on_process=options.on_process), shared=False)
    options.remembered[kind] = engine.probed
    return engine


def start_in_process(options: StartOptions) -> Engine:
    """Start an engine core in this process."""
    _, arguments = split_port(options.arguments)
    return with_fault(lambda: vllm_inproc.start(vllm_options(options, arguments)), shared=True)


def vllm_options(
    options: StartOptions, arguments: tuple[str, ...], *, probed: ProbeResult | None = None, port: int | None = None
) -> server.VllmOptions:
    """Return the options with which vLLM is started in one of its cells. Raises EngineStartError without a connector
    in a cell that tests the user's, and TypeError for another engine's cell."""
    cell = options.cell
    if not isinstance(cell, VllmCell):
        raise TypeError(f"cell {cell.name!r} is not a cell of vLLM")
    fingerprint = options.worker == FINGERPRINT
    try:
        tier, arguments = tier_and_rest(cell.tier, arguments)
    except ValueError as problem:
        raise EngineStartError(str(problem)) from problem
    generated = options.generated_model and not fingerprint
    model = served_model(options, cell)
    return server.VllmOptions(
        model=model,
        generated=options.generated_model,
        # Mamba's kernels have no such mode, and the one of a vision tower was not tried.
        exact=generated and not cell.images and cell.model is not ModelLayers.STATE and is_cuda_build(),
        prefix_caching=options.caching,
        arguments=(*draft_flags(cell, model, options), *arguments),
        log=options.log,
        files=options.files,
        adapter_path=str(options.adapters[0].resolve()) if options.adapters else None,
        lora_rank=server.lora_rank(options.adapters),
        probed=probed,
        port=port,
        most_requests=cell.most_requests,
        step_tokens=cell.number(CHUNK_TOKENS),
        model_ranks=cell.model_ranks,
        groups=GENERATED_GROUPS.get(cell.model, ()) if generated else (),
        topology=TOPOLOGIES[cell.topology] if fingerprint else None,
        events=cell.events and options.caching,
        tier=tier,
        tier_port=free_port(),
        environment=cell.environment,
        storage=options.storage,
        changed=options.changed,
        weight_transfer=cell.weight_transfer,
        prefill_apart=cell.prefill_apart,
    )


def draft_flags(cell: VllmCell, model: str, options: StartOptions) -> tuple[str, ...]:
    """Return the flags of a draft model: the served one again, so that cold drafts are right, or a head for it."""
    if not cell.draft_tokens:
        return ()
    heads = cell.drafter in FAMILIES
    drafter = str(draft_head(cell.drafter, Path(model), options.folder(cell.drafter))) if heads else model
    config = {"method": cell.drafter, "model": drafter, "num_speculative_tokens": cell.draft_tokens}
    return (DRAFTS_FLAG, json.dumps(config))


def served_model(options: StartOptions, cell: VllmCell) -> str:
    """Return the model to serve; in a cell with images, one that takes them, around the usual one."""
    if not cell.images:
        return options.model
    usual = Path(options.model)
    name = hashlib.sha256(f"images {usual.name}".encode() + Path(images.__file__).read_bytes()).hexdigest()[:16]
    beside = usual.with_name(name) if options.generated_model else options.folder("model")
    return str(images.image_model(usual, beside))


def with_fault(start: Callable[[], Started], *, shared: bool) -> Started:
    """Start an engine and check that the chosen fault and repairs are in it: otherwise no verdict would be valid.

    `shared`: all engines of this process share what was put into the first. Raises EngineStartError.
    """
    chosen = list(chosen_plugins())
    before = [0 if shared else plugin.count_markers(folder, "planted") for _, folder in chosen]
    engine = start()
    for (what, folder), earlier in zip(chosen, before, strict=True):
        if plugin.count_markers(folder, "planted") <= earlier:
            engine.stop()
            raise EngineStartError(f"{what} not injected: this engine does not load vLLM's general plugins")
    return engine


def chosen_plugins() -> Iterator[tuple[str, Path]]:
    """Yield what this run puts into its engines, as the beginning of a sentence, with the folder of its markers."""
    if name := os.environ.get(plugin.FAULT_VARIABLE):
        yield f"the fault {name!r} was", Path(os.environ.get(MARKERS_VARIABLE, ""))
    if os.environ.get(repairs.FILES):
        yield "the repairs were", Path(os.environ[repairs.MARKERS])


def check_arguments(arguments: tuple[str, ...]) -> None:
    """Raise ValueError for a port that is none, or a `--kv-transfer-config` without a connector."""
    split_port(arguments)
    given, _ = split_flag(arguments, TRANSFER_FLAG)
    if given is not None:
        given_tier(given)


def split_port(arguments: tuple[str, ...]) -> tuple[int | None, tuple[str, ...]]:
    """Return the value of `--port` and the other arguments: only the engine under test may use that port.

    Raises ValueError for an invalid port.
    """
    given, rest = split_flag(arguments, "--port")
    if given is None:
        return None, rest
    if not given.isdigit() or not 0 < int(given) < 65536:
        raise ValueError(f"{given!r} is not a port number")
    return int(given), rest


def faults() -> FaultCatalogue:
    """Return the catalogue of faults, which patch vLLM's code."""
    from coldproof.adapters.vllm.faults.catalogue import FAULTS, format_faults

    return FaultCatalogue(
        faults=FAULTS,
        listing=format_faults,
        injected=plugin.injected,
        acted=lambda folder: plugin.count_markers(folder, "acted") > 0,
    )


def noise(text: str, folder: Path) -> AbstractContextManager[None]:
    """Add score noise to every vLLM engine that is started in this context. `text` describes the noise."""
    return register_plugin(
        folder, "coldproof_noise", f"{install_noise.__module__}:{install_noise.__name__}", {VARIABLE: text}
    )


def variants(cell: Cell, shape: EngineShape, arguments: tuple[str, ...]) -> Iterator[EngineVariant]:
    """Yield the variants of a cell that differ from it. `arguments`: the user's, which follow the cell's.

    Those of a crossed cell lack one of its features each.
    """
    crossed = list(CROSSINGS.without_each(cell.name))
    if crossed:
        yield from (EngineVariant(name=f"no {name}", removes=name, cell=without) for name, without in crossed)
        return
    all_arguments = (*cell.arguments, *arguments)

    def variant(name: str, removes: str, *more: str, **changes: object) -> EngineVariant:
        changed = msgspec.structs.replace(cell, arguments=(*cell.arguments, *more), **changes)
        return EngineVariant(name=name, removes=removes, cell=changed)

    if isinstance(cell, VllmCell) and cell.tier is not None:
        yield variant("no second tier", TIER, tier=NOT_USED if cell.tier == GIVEN else None)
    if POOL_FLAG in all_arguments:
        yield variant(f"a pool of {ROOMY_BLOCKS} blocks", POOL, POOL_FLAG, str(ROOMY_BLOCKS))
    if CHUNK_TOKENS in all_arguments or CHUNK_OF_ONE in all_arguments:
        longest = str(shape.max_model_tokens)
        yield variant("prefill in one piece", CHUNKS, CHUNK_OF_ONE, "0", CHUNK_TOKENS, longest)
    if DRAFTS_FLAG in all_arguments:
        _, others = split_flag(cell.arguments, DRAFTS_FLAG)
        without_drafts = msgspec.structs.replace(cell, arguments=others)
        yield EngineVariant(name=NO_DRAFTS, removes=DRAFTS, cell=without_drafts)
    elif isinstance(cell, VllmCell) and cell.draft_tokens:
        yield variant(NO_DRAFTS, DRAFTS, draft_tokens=0)
    if isinstance(cell, VllmCell) and cell.environment == RUNNER_V2:
        yield variant("model runner V1", RUNNER, environment=RUNNER_V1)
    if "--async-scheduling" in all_arguments:
        yield variant("async scheduling off", ASYNC, "--no-async-scheduling")
    if "--no-enforce-eager" in all_arguments:
        yield variant("eager", GRAPHS, "--enforce-eager")
    used = all_arguments[all_arguments.index(HASH_FLAG) + 1] if HASH_FLAG in all_arguments[:-1] else ""
    yield variant("another hash algorithm", HASH, HASH_FLAG, SHA256 if used == CBOR else CBOR)


VLLM = EngineSpec(
    name=SERVER,
    about="vLLM's OpenAI-compatible server",
    title="vLLM",
    cells=CELLS,
    start=start_server,
    package=package(),
    releases=ReleasePackage(name=package()),
    quick=False,
    many_examples=False,
    workers=(MODEL, FINGERPRINT),
    default_for=(MODEL,),
    variants=variants,
    check_arguments=check_arguments,
    faults=faults,
    repairs=RepairSupport(findings="vllm", planted=repairs.planted),
    noise=noise,
    reproduction=reproducer.OPENAI,
    changes=(EngineChange.WEIGHTS, EngineChange.KV_FORMAT, EngineChange.ROPE),
    more_layers=(
        Layer(name=EXACT_LAYER, engine=IN_PROCESS, worker=FINGERPRINT),
        Layer(name=MODEL_LAYER, engine=IN_PROCESS, traits=NUMERIC_TRAITS, cells=NUMERIC_CELLS),
    ),
    preload=preload,
    known_issues=Path(__file__).with_name("known_issues.toml"),
    past_issues=Path(__file__).with_name("past_issues.toml"),
    weights=WEIGHTS,
    recognises=publishes_cache_config,
    switches=SWITCHES,
    connector=connector_run,
    profiles=PROFILES,
    field_cells=FIELD_CELLS,
    crossings=CROSSINGS,
)
VLLM_INPROC = msgspec.structs.replace(
    VLLM,
    name=IN_PROCESS,
    about="vLLM's engine core, stepped in this process",
    title="",
    cells=tuple(cell for cell in CELLS if cell.in_process),
    start=start_in_process,
    quick=True,
    default_for=(FINGERPRINT,),
    layer=MODEL_LAYER,
    more_layers=(),
    reproduction=reproducer.IN_PROCESS,
)
ENGINES = (VLLM, VLLM_INPROC)
