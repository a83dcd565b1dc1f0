"""Small workloads that show a fault of vLLM, and the engines on which they run, with the fingerprint worker."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.faults import plant
from support.histories import read_config

from coldproof.adapters.spec.cell import Cell, ModelLayers
from coldproof.adapters.spec.engine_spec import StartOptions
from coldproof.adapters.vllm.faults.patching import actions
from coldproof.adapters.vllm.inproc import engine as vllm_inproc
from coldproof.adapters.vllm.inproc.engine import InprocEngine
from coldproof.adapters.vllm.spec import vllm_options
from coldproof.harness.execution.models.cache_folder import generated_files
from coldproof.harness.execution.models.lora import generate_adapter, tiny_model
from coldproof.harness.execution.models.versions import generated_versions
from coldproof.harness.execution.oracles.closed_form import ClosedForm
from coldproof.harness.execution.runner.kv_event_ledger import EventLedger
from coldproof.harness.execution.runner.runner import WorkloadRun
from coldproof.harness.judgement.finding import EXACT
from coldproof.harness.judgement.judge import Judgement, judge
from coldproof.harness.judgement.oracle import Answer, Oracle, Question
from coldproof.harness.workload.steps import Burst, Meanwhile, Prompt, Request, Segment, Step, Workload
from coldproof.harness.workload.tokens import NONCE_TOKENS

CACHED = generated_files()
Part = tuple[str, int] | Segment


def ask(*parts: Part, tokens: int = 8, **more: Any) -> Request:
    """Return a request. The length of the first part includes the nonce, so that lengths are those of the prompt."""
    segments = [part if isinstance(part, Segment) else Segment(*part) for part in parts]
    if more.get("continues") is None:
        first = segments[0]
        segments[0] = Segment(first.name, first.length - NONCE_TOKENS, first.changed, first.swapped)
    prompt = Prompt(tuple(segments), continues=more.pop("continues", None))
    return Request(prompt=prompt, max_tokens=tokens, **more)


def alone(*parts: Part, tokens: int = 8, **more: Any) -> Burst:
    """Return a burst of one request."""
    return Burst(requests=(ask(*parts, tokens=tokens, **more),))


def together(*requests: Request, meanwhile: Meanwhile | None = None) -> Burst:
    """Return a burst of these requests."""
    return Burst(requests=requests, meanwhile=meanwhile)


def steps(*steps: Step) -> Workload:
    """Return a workload of these steps."""
    return Workload(steps)


class UnusedOracle(Oracle):
    """An oracle that must not be used. The closed form needs a cold engine for grammars and stop strings only."""

    name = "unused"

    def ask(self, question: Question) -> Answer:
        """Fail: no workload here has a grammar or a stop string."""
        raise AssertionError(question)


class FaultyEngines:
    """One engine for each cell, replaced as soon as a fault may have damaged it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.numbers = itertools.count()
        self.engines: dict[str, tuple[InprocEngine, EventLedger]] = {}
        model = tiny_model(CACHED)
        self.contents = {
            name: generate_adapter(CACHED, read_config(model), seed=seed, rank=8) for seed, name in enumerate("AB", 1)
        }
        self.versions = generated_versions(model, CACHED, layers=ModelLayers.FULL)

    def engine(self, cell: Cell) -> tuple[InprocEngine, EventLedger]:
        """Return the engine of a cell, and the ledger of the events that it has published."""
        if cell.name not in self.engines:
            options = StartOptions(
                cell=cell,
                model=str(tiny_model(CACHED)),
                worker="fingerprint",
                caching=True,
                arguments=cell.arguments,
                adapters=tuple(files.folder for files in self.contents.values()),
                log=self.folder / f"engine-{next(self.numbers)}.log",
                on_process=lambda _: None,
            )
            self.engines[cell.name] = vllm_inproc.start(vllm_options(options, options.arguments)), EventLedger()
        return self.engines[cell.name]

    def judged(self, cell: Cell, workload: Workload) -> Judgement:
        """Return the judgement of a workload on a cell's engine."""
        engine, ledger = self.engine(cell)
        run = WorkloadRun(
            engine,
            workload,
            f"{next(self.numbers):06x}",
            self.contents,
            self.folder,
            stall_seconds=2,
            ledger=ledger,
            versions=self.versions,
        )
        return judge(run.history(), ClosedForm(UnusedOracle()), EXACT, exclusive=True)

    def with_fault(self, name: str, cell: Cell, workload: Workload) -> tuple[Judgement, int]:
        """Return the judgement of a workload with a fault injected, and how often the fault acted."""
        before = actions["acted"]
        with pytest.MonkeyPatch.context() as patch:
            plant(name, patch)
            judgement = self.judged(cell, workload)
        engine, _ = self.engines[cell.name]
        if cell.name.startswith(("events", "tier")) or not is_undamaged(engine):
            self.engines.pop(cell.name)
            engine.stop()
        return judgement, actions["acted"] - before

    def stop(self) -> None:
        """Stop all engines."""
        for engine, _ in self.engines.values():
            engine.stop()


def is_undamaged(engine: InprocEngine) -> bool:
    """Return whether a workload left nothing in an engine of one pool: no request is open, and each block is free
    once.
    """
    if not engine.alive() or not engine.reset_cache():
        return False
    with engine.entered() as parts:
        scheduler = parts.core.scheduler
        pool = scheduler.kv_cache_manager.block_pool
        free = {block.block_id for block in pool.free_block_queue.get_all_free_blocks()}
        held = any(block.ref_cnt for block in pool.blocks if not block.is_null)
        return (
            not scheduler.requests and not held and len(free) == pool.get_num_free_blocks() == pool.num_gpu_blocks - 1
        )


@contextlib.contextmanager
def faulty_engines(folder: Path) -> Iterator[FaultyEngines]:
    """Yield engines that live as long as the context."""
    engines = FaultyEngines(folder)
    yield engines
    engines.stop()


def assert_shown(engines: FaultyEngines, fault: str, cell: Cell, workload: Workload) -> None:
    """Check that the unmodified engine conforms, that the fault acts, and that a checker reports it."""
    clean = engines.judged(cell, workload)
    assert clean.findings == ()
    judgement, acted = engines.with_fault(fault, cell, workload)
    assert acted
    assert judgement.findings
