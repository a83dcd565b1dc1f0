"""The client of OpenVINO GenAI's worker: it sends one message at a time, and detects a dead or silent worker."""

from __future__ import annotations

import socket
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from coldproof.adapters.common.environment import current_environment
from coldproof.adapters.common.process import EngineProcess, python_path
from coldproof.adapters.common.scratch import ScratchFolder
from coldproof.adapters.openvino.setup import PACKAGE, PipelineFacts, registered
from coldproof.adapters.protocol.engine import EngineDied, EngineSilent, EngineStartError
from coldproof.adapters.spec.engine_spec import StartOptions

START_SECONDS, PATIENCE = 120.0, 120.0
POLL_SECONDS = 0.2
Reply = TypeVar("Reply")


class EngineRefusal(Exception):
    """The engine raised an error. The message is the engine's."""


class WorkerClient:
    """A worker and the facts of its pipeline. Raises EngineStartError with the reason or the end of its log."""

    def __init__(self, options: StartOptions) -> None:
        self.scratch = ScratchFolder()  # a socket's path must be short
        self.folder = self.scratch.path
        address = str(self.folder / "engine")
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(address)
            listening.listen()
            command = [sys.executable, "-P", "-m", "coldproof.adapters.openvino.worker", address]
            self.process = EngineProcess(command, environment(), options.log)
            options.on_process(self.process)
            try:
                self.connection = Connection(self.accept(listening).detach())
                adapters = [str(path.resolve()) for path in registered(options)]
                model, folder = str(Path(options.model).resolve()), str(self.folder / "model")
                self.send([model, folder, adapters, options.arguments, options.caching])
                self.facts = self.answer(PipelineFacts)
            except (EngineDied, EngineSilent, EngineRefusal) as problem:
                self.stop()
                raise EngineStartError(f"OpenVINO GenAI (package {PACKAGE}) did not start: {problem}") from problem
            except BaseException:
                self.stop()
                raise
        self.process.record_processes()

    def accept(self, listening: socket.socket) -> socket.socket:
        """Return the worker's connection. Raises EngineDied if it terminates first, EngineSilent on timeout."""
        listening.settimeout(POLL_SECONDS)
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            try:
                return listening.accept()[0]
            except TimeoutError:
                if not self.process.running():
                    raise self.death() from None
        raise EngineSilent(f"no connection after {START_SECONDS:.0f} s; the end of its log:\n{self.process.tail()}")

    def call(self, returns: type[Reply], name: str, *arguments: Any) -> Reply:
        """Call a method of the worker and return its result. Raises EngineRefusal, EngineDied or EngineSilent."""
        self.send([name, *arguments])
        return self.answer(returns)

    def send(self, message: Any) -> None:
        """Send a message. Raises EngineDied."""
        try:
            self.connection.send_bytes(msgspec.msgpack.encode(message))
        except OSError as problem:
            raise self.death() from problem

    def answer(self, returns: type[Reply]) -> Reply:
        """Return the worker's reply. Raises EngineRefusal, EngineDied or EngineSilent."""
        try:
            if not self.connection.poll(PATIENCE):
                raise EngineSilent(f"no answer for {PATIENCE:.0f} s, but the engine's process is running")
            accept, payload = msgspec.msgpack.decode(self.connection.recv_bytes(), type=tuple[bool, msgspec.Raw])
        except (OSError, EOFError) as problem:
            raise self.death() from problem
        if not accept:
            raise EngineRefusal(msgspec.msgpack.decode(payload, type=str))
        return msgspec.msgpack.decode(payload, type=returns)

    def death(self) -> EngineDied:
        """Wait up to 5 s for the process to terminate, and return the error with its exit code."""
        until = time.monotonic() + 5.0
        while self.process.running() and time.monotonic() < until:
            time.sleep(0.01)
        return EngineDied(f"the engine's process has ended with exit code {self.process.exit_code()}")

    def stop(self) -> None:
        """Stop the worker. A second call has no effect."""
        self.process.stop()
        self.scratch.remove()


def environment() -> dict[str, str]:
    """Return the worker's environment: the user's, plus PYTHONPATH, and one thread by default."""
    return {"OMP_NUM_THREADS": "1", **current_environment(), "PYTHONPATH": python_path()}
