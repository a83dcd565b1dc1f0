"""Ray as the fleet uses it: runs out, messages back, and which of the ways in which a task can end is nobody's verdict.

Ray itself retries nothing: a run that its driver knows nothing of would be in the totals twice.
"""

from __future__ import annotations

import dataclasses
import os
import re
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.fleet import remote
from harness.fleet.matrix import Machine
from harness.fleet.remote import Message, Order
from harness.options import UsageError

LOCAL = "local"
LOOK_SECONDS = 10.0
CLOSE_SECONDS = 30.0  # for the runs' guards, which give engines 8 s
STORE_BYTES = 200 * 2**20  # of a Ray of our own: messages pass through it, nothing stays there
BESIDE_NODES = ("node:", "bundle_group", "object_store_memory")  # of a cluster's resources: no machine's kind


@dataclass(frozen=True, slots=True)
class Lost:
    """The node or Ray's worker on it went, and the run with it: nobody's verdict, and a reason to try again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Broken:
    """The task could not be done, and another try would end alike."""

    reason: str


class Cluster:
    """A Ray of this machine (`local`), or one that is there."""

    def __init__(self, address: str, *, files: Callable[[], Path] | None = None) -> None:
        """Raises UsageError where there is no Ray, or none at that address. `files`: what nodes elsewhere are sent."""
        self.ray = imported()
        look(address)
        self.running: dict[Any, str] = {}  # Ray's generators -> ids of units
        self.local = address == LOCAL
        options: dict[str, Any] = {"object_store_memory": STORE_BYTES, "include_dashboard": False} if self.local else {}
        if files is not None:
            options["runtime_env"] = {"working_dir": str(files())}
        try:
            self.ray.init(address=address, log_to_driver=False, configure_logging=False, **options)
        except (ConnectionError, ValueError, RuntimeError, OSError) as problem:
            raise UsageError(f"no Ray at --address {address}: {problem}") from problem
        self.ray.cloudpickle.register_pickle_by_value(remote)
        self.task = self.ray.remote(remote.at_node)

    def lacking(self, machines: Sequence[Machine]) -> list[str]:
        """What no node has of what a kind of machine asks for, in words."""
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        return [
            f"no node has what machine {machine.name!r} asks for ({in_words(needs)}): the largest have {largest(nodes)}"
            for machine in machines
            if (needs := demands(machine))
            and not any(all(node.get(name, 0) >= much for name, much in needs.items()) for node in nodes)
        ]

    def start(self, order: Order, machine: Machine) -> None:
        """Have a run done as soon as a node has room."""
        wanted: dict[str, Any] = {"num_cpus": machine.num_cpus, "num_gpus": machine.num_gpus}
        if machine.accelerator_type:
            wanted["accelerator_type"] = machine.accelerator_type
        if machine.runtime_env:
            wanted["runtime_env"] = machine.runtime_env
        task = self.task.options(
            **wanted, resources=machine.resources, num_returns="streaming", max_retries=0, name=order.unit
        )
        self.running[task.remote(dataclasses.astuple(order))] = order.unit

    def messages(self, seconds: float) -> list[tuple[str, Message | Lost | Broken]]:
        """What has come in, at most one message of each run; nothing where none came in that time."""
        if not self.running:
            return []
        ready, _ = self.ray.wait(list(self.running), num_returns=1, timeout=seconds, fetch_local=False)
        if ready:  # and whatever else is there by now
            ready, _ = self.ray.wait(list(self.running), num_returns=len(self.running), timeout=0, fetch_local=False)
        return [(self.running[stream], self.next_of(stream)) for stream in ready]

    def next_of(self, stream: Any) -> Message | Lost | Broken:
        """A run's next message, or how its task ended."""
        errors = self.ray.exceptions
        gone = (
            errors.WorkerCrashedError,
            errors.NodeDiedError,
            errors.ObjectLostError,
            errors.OutOfMemoryError,
            errors.LocalRayletDiedError,
        )
        try:
            return remote.received(self.ray.get(next(stream)))
        except StopIteration:
            del self.running[stream]
            return Broken("its task ended without a word of how the run did")
        except gone as problem:
            del self.running[stream]
            return Lost(f"{type(problem).__name__}: {problem}")
        except errors.RayError as problem:
            del self.running[stream]
            return Broken(f"{type(problem).__name__}: {problem}")

    def close(self) -> None:
        """End what still runs, and let go of Ray."""
        for stream in self.running:
            self.ray.cancel(stream, force=False)  # the task's own end takes the run and its folder along
        end = time.monotonic() + CLOSE_SECONDS
        while self.running and time.monotonic() < end:
            self.messages(LOOK_SECONDS)
        self.ray.shutdown()


def look(address: str) -> None:
    """Raise UsageError where nobody listens at HOST:PORT: Ray would try for minutes, and then end the process."""
    found = re.fullmatch(r"(?:ray://)?(.+):([0-9]{1,5})", address)
    if found is None:
        return
    try:
        socket.create_connection((found[1].strip("[]"), int(found[2])), timeout=LOOK_SECONDS).close()
    except (OSError, OverflowError) as problem:
        raise UsageError(f"no Ray at --address {address}: {problem}") from problem


def imported() -> ModuleType:
    """Ray, quiet. Raises UsageError where it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        import ray.exceptions
    except ImportError as problem:
        raise UsageError("a fleet needs Ray: pip install 'coldproof[fleet]', or pip install ray") from problem
    module: ModuleType = ray
    return module


def demands(machine: Machine) -> dict[str, float]:
    """What has to be free on one node, by Ray's names of resources."""
    needs = {"CPU": machine.num_cpus, "GPU": machine.num_gpus, **machine.resources}
    if machine.accelerator_type:
        needs[f"accelerator_type:{machine.accelerator_type}"] = 0.001  # what Ray itself asks for
    return {name: much for name, much in needs.items() if much}


def in_words(needs: dict[str, float]) -> str:
    """Resources in words."""
    return ", ".join(f"{name} {much:g}" for name, much in sorted(needs.items()))


def largest(nodes: Sequence[dict[str, float]]) -> str:
    """The most that any node has of each resource."""
    names = {name for node in nodes for name in node if not name.startswith(BESIDE_NODES) and name != "memory"}
    return in_words({name: max(node.get(name, 0) for node in nodes) for name in names}) or "nothing"
