"""The fleet's use of Ray: starts runs, receives their messages, and tells lost tasks from failed ones.

Ray's own retries are disabled. A run that was retried without the driver's knowledge would be counted twice.
"""

from __future__ import annotations

import dataclasses
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from coldproof.harness.fleet import node as remote
from coldproof.harness.fleet.matrix import Machine
from coldproof.harness.fleet.node import Message, Order
from coldproof.harness.options import UsageError

LOCAL = "local"
POLL_SECONDS = 10.0
CANCEL_SECONDS = 12.0  # longer than the 8 s that a guard gives an engine: a second cancellation must not interrupt that
CLOSE_SECONDS = 60.0  # several cancellations: on a busy machine Ray has lost two in a row
STORE_BYTES = 200 * 2**20  # of a Ray started here; it only holds messages in transit
BESIDE_NODES = ("node:", "bundle_group", "object_store_memory")  # resources that do not describe a kind of machine


@dataclass(frozen=True, slots=True)
class NodeLost:
    """The node or Ray's worker on it was lost, and the run with it. The run has no verdict and can be retried."""

    reason: str


@dataclass(frozen=True, slots=True)
class TaskFailed:
    """The task failed, and a retry would fail in the same way."""

    reason: str


class Cluster:
    """A Ray that is started on this machine (address `local`), or a running Ray cluster."""

    def __init__(self, address: str, *, files: Callable[[], Path] | None = None) -> None:
        """Connect to Ray. `files` makes the folder that is sent to remote nodes. Raises UsageError without Ray."""
        self.ray = import_ray()
        check_address(address)
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
        """Return a message for each kind of machine whose resources no node has."""
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        return [
            f"no node has the resources of machine {machine.name!r} ({format_resources(needs)}): the largest have "
            f"{largest(nodes)}"
            for machine in machines
            if (needs := demands(machine))
            and not any(all(node.get(name, 0) >= much for name, much in needs.items()) for node in nodes)
        ]

    def start(self, order: Order, machine: Machine) -> None:
        """Schedule a run; it starts as soon as a node has the resources."""
        wanted: dict[str, Any] = {"num_cpus": machine.num_cpus, "num_gpus": machine.num_gpus}
        if machine.accelerator_type:
            wanted["accelerator_type"] = machine.accelerator_type
        if machine.runtime_env:
            wanted["runtime_env"] = machine.runtime_env
        task = self.task.options(
            **wanted, resources=machine.resources, num_returns="streaming", max_retries=0, name=order.unit
        )
        self.running[task.remote(dataclasses.astuple(order))] = order.unit

    def messages(self, seconds: float) -> list[tuple[str, Message | NodeLost | TaskFailed]]:
        """Wait at most `seconds`, and return at most one message of each run."""
        if not self.running:
            return []
        ready, _ = self.ray.wait(list(self.running), num_returns=1, timeout=seconds, fetch_local=False)
        if ready:  # collect all other messages that have arrived
            ready, _ = self.ray.wait(list(self.running), num_returns=len(self.running), timeout=0, fetch_local=False)
        return [(self.running[stream], self.next_of(stream)) for stream in ready]

    def next_of(self, stream: Any) -> Message | NodeLost | TaskFailed:
        """Return a run's next message, or how its task ended."""
        errors = self.ray.exceptions
        gone = (
            errors.WorkerCrashedError,
            errors.NodeDiedError,
            errors.ObjectLostError,
            errors.OutOfMemoryError,
            errors.LocalRayletDiedError,
        )
        try:
            return remote.decode_message(self.ray.get(next(stream)))
        except StopIteration:
            del self.running[stream]
            return TaskFailed("the task ended without reporting the result of its run")
        except gone as problem:
            del self.running[stream]
            return NodeLost(f"{type(problem).__name__}: {problem}")
        except errors.RayError as problem:
            del self.running[stream]
            return TaskFailed(f"{type(problem).__name__}: {problem}")

    def close(self) -> None:
        """Cancel running tasks and disconnect from Ray.

        Ray may lose a cancellation, and then the next message never comes: it is repeated while a thread waits.
        """
        waiting = threading.Thread(target=self.wait_for_all, daemon=True)
        waiting.start()
        end = time.monotonic() + CLOSE_SECONDS
        while waiting.is_alive() and time.monotonic() < end:
            for stream in list(self.running):
                self.ray.cancel(stream, force=False)  # a cancelled task ends its run and removes its folder
            waiting.join(CANCEL_SECONDS)
        self.ray.shutdown()

    def wait_for_all(self) -> None:
        """Receive the messages of all runs until these have ended."""
        while self.running:
            self.messages(POLL_SECONDS)


def check_address(address: str) -> None:
    """Raise UsageError if nothing listens at HOST:PORT. Ray would try for minutes and then end the process."""
    found = re.fullmatch(r"(?:ray://)?(.+):([0-9]{1,5})", address)
    if found is None:
        return
    try:
        socket.create_connection((found[1].strip("[]"), int(found[2])), timeout=POLL_SECONDS).close()
    except (OSError, OverflowError) as problem:
        raise UsageError(f"no Ray at --address {address}: {problem}") from problem


def import_ray() -> ModuleType:
    """Import Ray with usage statistics disabled. Raises UsageError if it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        import ray.exceptions
    except ImportError as problem:
        raise UsageError("coldproof fleet needs Ray: pip install ray") from problem
    module: ModuleType = ray
    return module


def demands(machine: Machine) -> dict[str, float]:
    """Return the resources that a run needs on one node, by Ray's names."""
    needs = {"CPU": machine.num_cpus, "GPU": machine.num_gpus, **machine.resources}
    if machine.accelerator_type:
        needs[f"accelerator_type:{machine.accelerator_type}"] = 0.001  # the amount that Ray itself requests
    return {name: much for name, much in needs.items() if much}


def format_resources(needs: dict[str, float]) -> str:
    """Return resources as text."""
    return ", ".join(f"{name} {much:g}" for name, much in sorted(needs.items()))


def largest(nodes: Sequence[dict[str, float]]) -> str:
    """Return the largest amount of each resource on any node, as text."""
    names = {name for node in nodes for name in node if not name.startswith(BESIDE_NODES) and name != "memory"}
    return format_resources({name: max(node.get(name, 0) for node in nodes) for name in names}) or "nothing"
