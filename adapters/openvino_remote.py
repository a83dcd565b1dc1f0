"""The caller's end of OpenVINO GenAI's worker: one message, one answer; an engine that is gone or silent says so."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from adapters.base import EngineDied, EngineSilent, EngineStartError
from adapters.openvino_setup import PACKAGE, Facts, Made, OpenVinoOptions
from adapters.process import EngineProcess

ROOT = Path(__file__).parent.parent
START_SECONDS, PATIENCE = 120.0, 120.0
LOOK_SECONDS = 0.2
Told = TypeVar("Told")


class Refused(Exception):
    """The engine raised an error; the message is its own."""


class Remote:
    """A worker and the facts of what it made. Raises EngineStartError with the reason or the end of its log."""

    def __init__(self, options: OpenVinoOptions, on_process: Callable[[EngineProcess], None]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="coldproof-"))  # a socket's path must be short
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        address = str(self.folder / "engine")
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(address)
            listening.listen()
            command = [sys.executable, "-m", "adapters.openvino_worker", address]
            self.process = EngineProcess(command, environment, options.log)
            on_process(self.process)
            try:
                self.connection = Connection(self.accepted(listening).detach())
                self.facts = self.call_made(made(options, self.folder / "model"))
            except (EngineDied, EngineSilent, Refused) as problem:
                self.stop()
                raise EngineStartError(f"OpenVINO GenAI (package {PACKAGE}) did not start: {problem}") from problem
            except BaseException:
                self.stop()
                raise
        self.process.remember()

    def accepted(self, listening: socket.socket) -> socket.socket:
        """The worker's connection. Raises EngineDied when its process ends first, EngineSilent when time runs out."""
        listening.settimeout(LOOK_SECONDS)
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            try:
                return listening.accept()[0]
            except TimeoutError:
                if not self.process.running():
                    raise self.death() from None
        raise EngineSilent(f"nothing came for {START_SECONDS:.0f} s; the end of its log:\n{self.process.tail()}")

    def call_made(self, wanted: Made) -> Facts:
        """Have the pipeline made."""
        self.send(wanted)
        return self.answer(Facts)

    def call(self, returns: type[Told], name: str, *arguments: Any) -> Told:
        """One method of the worker. Raises Refused, EngineDied or EngineSilent."""
        self.send([name, *arguments])
        return self.answer(returns)

    def send(self, message: Any) -> None:
        """Say something."""
        try:
            self.connection.send_bytes(msgspec.msgpack.encode(message))
        except OSError as problem:
            raise self.death() from problem

    def answer(self, returns: type[Told]) -> Told:
        """What comes back."""
        try:
            if not self.connection.poll(PATIENCE):
                raise EngineSilent(f"no answer came for {PATIENCE:.0f} s while the engine's process is there")
            accepted, told = msgspec.msgpack.decode(self.connection.recv_bytes(), type=tuple[bool, msgspec.Raw])
        except (OSError, EOFError) as problem:
            raise self.death() from problem
        if not accepted:
            raise Refused(msgspec.msgpack.decode(told, type=str))
        return msgspec.msgpack.decode(told, type=returns)

    def death(self) -> EngineDied:
        """Why nobody answers any more, once the process has ended."""
        until = time.monotonic() + 5.0
        while self.process.running() and time.monotonic() < until:
            time.sleep(0.01)
        return EngineDied(f"the engine's process has ended with exit code {self.process.exit_code()}")

    def stop(self) -> None:
        """End it. Safe to call twice."""
        self.process.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def made(options: OpenVinoOptions, folder: Path) -> Made:
    """What the worker has to make."""
    return Made(
        model=str(Path(options.model).resolve()),
        folder=str(folder),
        adapters=tuple(str(path.resolve()) for path in options.adapters),
        words=options.arguments,
        caching=options.prefix_caching,
    )
