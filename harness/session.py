"""One run: engines, oracles and adapter contents, opened when first needed and closed whole.

Only this module knows how many engines live: the one under test, a cold one for the oracle, and for a moment a fresh
one that a counterexample is confirmed on.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from adapters import endpoint, vllm
from adapters.base import Capability, EngineStartError, RequestRefused
from adapters.checked import CheckedEngine
from adapters.probes import Probed
from adapters.process import EngineProcess
from adapters.server import ServerEngine
from harness.cells import Cell
from harness.events import EventLog
from harness.models.adapters import AdapterError, AdapterFiles, forge_adapter, tiny_model, user_adapter
from harness.options import PROFILES, Options, Profile, UsageError
from harness.oracle.base import Answers
from harness.oracle.engine import EngineOracle

CACHE = Path(".coldproof")
RECIPES = {"A": (1, 8), "B": (2, 8), "C": (3, 16), "D": (4, 4)}  # content -> (seed, rank): ranks differ on purpose
USER_CONTENTS = "ABCDEFGH"


class Session:
    """Everything of one run that outlives a single requirement."""

    def __init__(self, options: Options, log: EventLog, root: Path) -> None:
        self.options = options
        self.log = log
        self.cache = root / CACHE / "cache"
        self.memo: Answers = {}
        self.contents: dict[str, AdapterFiles] = {}
        self.engines: list[CheckedEngine] = []
        self.tested: list[CheckedEngine] = []
        self.processes: list[EngineProcess] = []
        self.closing = False
        self.probed: dict[tuple[Cell, bool], Probed] = {}  # engines of one kind are asked once what they can do
        self.starts: list[float] = []
        self.started_engines = 0
        shared = options.shared_dir or root / CACHE
        shared.mkdir(parents=True, exist_ok=True)
        self.work = Path(tempfile.mkdtemp(prefix="work-", dir=shared))
        self._runs = 0
        self._starter = ThreadPoolExecutor(1)  # one start at a time: two would take twice as long each

    @property
    def profile(self) -> Profile:
        """The chosen profile's figures."""
        return PROFILES[self.options.profile]

    def prepare(self) -> None:
        """Make or check model and adapters. Raises UsageError."""
        if not self.options.attached:
            self.make_contents(Path(self.model()) / "config.json")

    def model(self) -> str:
        """The model to serve: the user's, or the tiny one."""
        return self.options.model or str(tiny_model(self.cache))

    def make_contents(self, config: Path | None) -> None:
        """The adapter contents of this run: the user's own, or forged for the model of that config.json."""
        try:
            if self.options.adapters:
                given = zip(USER_CONTENTS, self.options.adapters, strict=False)
                self.contents = {name: user_adapter(folder) for name, folder in given}
            elif config is not None and config.is_file():
                facts: dict[str, Any] = json.loads(config.read_text())
                self.contents = {
                    name: forge_adapter(self.cache, facts, seed=seed, rank=rank)
                    for name, (seed, rank) in RECIPES.items()
                }
        except (AdapterError, ValueError) as problem:
            raise UsageError(str(problem)) from problem

    def open_engine(self, cell: Cell, *, caching: bool = True, purpose: str) -> CheckedEngine:
        """Spawn or attach. Raises EngineStartError or UsageError."""
        began = time.monotonic()
        if self.options.attached:
            engine = self.attach()
        else:
            self.started_engines += 1
            log = self.options.report_dir / f"engine-{self.started_engines:02d}-{purpose}.log"
            port, arguments = split_port(self.options.engine_args)
            options = vllm.VllmOptions(
                model=self.model(),
                prefix_caching=caching,
                arguments=(*cell.arguments, *arguments),
                log=log.resolve(),
                adapter_path=str(next(iter(self.contents.values())).folder.resolve()) if self.contents else None,
                probed=self.probed.get((cell, caching)),
                port=port if purpose == "tested" else None,
            )
            engine = vllm.spawn(options, on_process=self.keep)
            self.probed[cell, caching] = engine.probed
        checked = CheckedEngine(engine)
        self.engines.append(checked)
        if purpose == "tested":
            self.tested.append(checked)
        self.starts.append(round(time.monotonic() - began, 1))
        return checked

    def keep(self, process: EngineProcess) -> None:
        """Remember a process that is just starting; one that comes while the run is closing is ended at once."""
        self.processes.append(process)
        if self.closing:
            process.stop()

    def open_in_background(self, cell: Cell, *, caching: bool, purpose: str) -> Future[CheckedEngine]:
        """The same without waiting: engines start slowly and mostly alone."""
        return self._starter.submit(self.open_engine, cell, caching=caching, purpose=purpose)

    def attach(self) -> ServerEngine:
        """Attach to the user's server; adapters are forged for the model that it says it serves."""

        def adapter_for(root: str | None) -> str | None:
            source = self.options.model or root
            self.make_contents(Path(source) / "config.json" if source else None)
            first = next(iter(self.contents.values()), None)
            return str(first.folder.resolve()) if first else None

        if self.options.engine_url is None:
            raise UsageError("--engine endpoint needs --engine-url http://HOST:PORT")
        return endpoint.attach(self.options.engine_url, adapter_for=adapter_for)

    def vet_contents(self, engine: CheckedEngine) -> None:
        """Have the engine load every adapter content once; go on with those it takes.

        Raises UsageError when it refuses one that the user gave: a run without it would not be what was asked for.
        """
        if engine.capabilities[Capability.RUNTIME_LORA].present is not True:
            if self.options.adapters:
                reason = engine.capabilities[Capability.RUNTIME_LORA].evidence
                raise UsageError(f"the engine does not load {self.options.adapters[0]}: {reason}")
            return
        for name, files in list(self.contents.items()):
            served = f"vetted-{files.digest}-{secrets.token_hex(4)}"
            try:
                engine.load_adapter(served, str(files.folder.resolve()), in_place=False)
                engine.unload_adapter(served)
            except RequestRefused as refusal:
                if self.options.adapters:
                    raise UsageError(f"the engine does not load {files.folder}: {refusal}") from refusal
                self.log.emit("phase", words=f"adapter {name} {files.recipe} is left out: {refusal}")
                del self.contents[name]

    def oracle_for(self, name: str, engine: CheckedEngine) -> EngineOracle:
        """An oracle over an engine, sharing this run's memory of answers."""
        adapters = list(self.contents.values())
        return EngineOracle(name, engine, adapters, memo=self.memo, salted=name == "same-engine")

    def close_engine(self, engine: CheckedEngine) -> None:
        """Stop one engine."""
        engine.stop()

    def folder(self) -> Path:
        """A new folder for one workload's adapter files."""
        self._runs += 1
        return self.work / f"run{self._runs}"

    def close(self) -> None:
        """Stop every engine and remove the scratch files; also after Ctrl-C in the middle of a start."""
        self.closing = True
        for process in list(self.processes):
            process.stop()
        self._starter.shutdown(wait=True, cancel_futures=True)
        shutil.rmtree(self.work, ignore_errors=True)

    @contextlib.contextmanager
    def fresh(self, cell: Cell, *, caching: bool) -> Iterator[CheckedEngine]:
        """An engine that has answered nothing yet, for as long as the block runs."""
        engine = self.open_engine(cell, caching=caching, purpose="fresh")
        try:
            yield engine
        finally:
            self.close_engine(engine)


def missing(engine: CheckedEngine, needs: tuple[Capability, ...], *, contents: int) -> list[str]:
    """Why a requirement cannot be tested here: each capability that is absent or unknown, with the evidence.

    Adapters need at least two contents to tell apart.
    """
    absent = []
    if Capability.RUNTIME_LORA in needs and contents < 2:
        absent.append(f"{contents} usable adapter contents: give two that the engine loads with --adapter")
    for need in needs:
        support = engine.capabilities[need]
        if support.present is not True:
            absent.append(f"{need.value}: {support.evidence}")
    return absent


def split_port(arguments: tuple[str, ...]) -> tuple[int | None, tuple[str, ...]]:
    """Take `--port N` out of the engine's arguments: only the engine under test may have it."""
    rest = list(arguments)
    for i, word in enumerate(rest):
        value = word.partition("=")[2] if word.startswith("--port=") else None
        if word == "--port" and i + 1 < len(rest):
            value = rest[i + 1]
        if value is not None:
            if not value.isdigit() or not 0 < int(value) < 65536:
                raise UsageError(f"--engine-args: {value!r} is no port")
            del rest[i : i + (2 if word == "--port" else 1)]
            return int(value), tuple(rest)
    return None, tuple(rest)


def split_arguments(text: str) -> tuple[str, ...]:
    """Split --engine-args as a shell would. Raises UsageError for an open quote."""
    try:
        return tuple(shlex.split(text))
    except ValueError as problem:
        raise UsageError(f"--engine-args {text!r}: {problem}") from problem


__all__ = ["EngineStartError", "Session", "missing", "split_arguments", "split_port"]
