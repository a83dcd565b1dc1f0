"""The fleet's use of Ray: a task for each run, with the resources that it needs. Ray places, queues and retries."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from coldproof.harness.fleet import node
from coldproof.harness.fleet.matrix import Machine, Unit
from coldproof.harness.fleet.node import Ended
from coldproof.harness.options import UsageError
from coldproof.reports.format.text import one_line

LOCAL = "local"  # a Ray that is started on this machine
CONNECT_SECONDS = 10.0
POLL_SECONDS = 10.0
CANCEL_SECONDS = 12.0  # longer than the 8 s that a guard gives an engine
CANCELLATIONS = 5  # on a busy machine Ray has lost two in a row
STORE_BYTES = 200 * 2**20  # of a Ray started here; it only holds results in transit


@contextlib.contextmanager
def connected(address: str, sources: Path, *, retries: int) -> Iterator[ModuleType]:
    """Connect to Ray, or start it, and send a folder to its nodes. SIGTERM is a Ctrl-C then. Raises UsageError."""
    ray = import_ray(retries)
    check_address(address)
    own: dict[str, Any] = {"object_store_memory": STORE_BYTES, "include_dashboard": False} if address == LOCAL else {}
    sent = {"working_dir": str(sources)}
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False, runtime_env=sent, **own)
    except (ConnectionError, ValueError, RuntimeError, OSError) as problem:
        raise UsageError(f"no Ray at --address {address}: {problem}") from problem
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # Ray's handler ends the process without a report
    try:
        ray.cloudpickle.register_pickle_by_value(node)
        yield ray
    finally:
        ray.shutdown()
        signal.signal(signal.SIGTERM, before)


def import_ray(retries: int) -> ModuleType:
    """Import Ray with usage statistics disabled. Raises UsageError if it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Of a run that exceeds a node's memory; by default without end. The name is Ray's.
    os.environ["RAY_task_oom_retries"] = str(retries)  # noqa: SIM112
    try:
        import ray
    except ImportError as problem:
        raise UsageError("coldproof fleet needs Ray: pip install ray") from problem
    module: ModuleType = ray
    return module


def check_address(address: str) -> None:
    """Raise UsageError if nothing listens at HOST:PORT. Ray would try for minutes and then end the process."""
    found = re.fullmatch(r"(?:ray://)?(.+):([0-9]{1,5})", address)
    if found is None:
        return
    try:
        socket.create_connection((found[1].strip("[]"), int(found[2])), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as problem:
        raise UsageError(f"no Ray at --address {address}: {problem}") from problem


def check_machines(ray: ModuleType, machines: Iterable[Machine]) -> None:
    """Raise UsageError for a machine whose resources no node has. Ray would wait for such a node without end."""
    nodes = [one["Resources"] for one in ray.nodes() if one["Alive"]]
    for machine in machines:
        needs = {"CPU": machine.num_cpus, "GPU": machine.num_gpus, **machine.resources}
        if machine.accelerator_type:
            needs[f"accelerator_type:{machine.accelerator_type}"] = 0.001  # the amount that Ray itself requests
        if not any(all(one.get(name, 0) >= much for name, much in needs.items()) for one in nodes):
            said = ", ".join(f"{name} {much:g}" for name, much in sorted(needs.items()) if much)
            raise UsageError(
                f"no node has the resources of machine {machine.name!r} ({said}); use --autoscaling to wait for new "
                "nodes"
            )


def start_on(ray: ModuleType, machine: Machine, name: str, *arguments: object, retries: int) -> Any:
    """Submit a run and return Ray's reference to its result. `arguments`: those of node.run_task."""
    wanted: dict[str, Any] = {"num_cpus": machine.num_cpus, "num_gpus": machine.num_gpus}
    if machine.accelerator_type:
        wanted["accelerator_type"] = machine.accelerator_type
    if machine.runtime_env:
        wanted["runtime_env"] = machine.runtime_env
    task = ray.remote(node.run_task).options(**wanted, resources=machine.resources, max_retries=retries, name=name)
    return task.remote(*arguments)


def ended_runs(
    ray: ModuleType,
    units: Sequence[Unit],
    start: Callable[[Unit], Any],
    *,
    workers: int | None,
    say: Callable[[str], None],
) -> Generator[tuple[Unit, Ended | str], None, None]:
    """Run all units, at most `workers` at a time, and yield how each ended, or why there is no result.

    If the caller closes the iterator, the running units are cancelled.
    """
    waiting, running = deque(units), dict[Any, Unit]()
    dead = dead_nodes(ray)
    try:
        while waiting or running:
            while waiting and (workers is None or len(running) < workers):
                unit = waiting.popleft()
                running[start(unit)] = unit
            ready, _ = ray.wait(list(running), timeout=POLL_SECONDS)
            for lost in dead_nodes(ray) - dead:
                dead.add(lost)
                say(f"node {lost[: node.NODE_ID]} was lost; Ray retries its runs on other nodes")
            for task in ready:
                yield running.pop(task), result_of(ray, task)
    finally:
        cancel(ray, list(running))


def dead_nodes(ray: ModuleType) -> set[str]:
    """Return the ids of all nodes that the cluster has lost."""
    return {one["NodeID"] for one in ray.nodes() if not one["Alive"]}


def result_of(ray: ModuleType, task: Any) -> Ended | str:
    """Return how a run ended, or why there is no result, also after all retries."""
    try:
        return Ended(**ray.get(task))
    except ray.exceptions.RayError as problem:
        cause = getattr(problem, "cause", None) or problem  # of a failure in the task itself
        return one_line(f"{type(cause).__name__}: {cause}", 200)


def cancel(ray: ModuleType, running: list[Any]) -> None:
    """Cancel tasks and wait for them: each ends its engine and removes its folder. Ray may lose a cancellation."""
    for _ in range(CANCELLATIONS):
        if not running:
            return
        for task in running:
            ray.cancel(task, force=False)
        _, running = ray.wait(running, num_returns=len(running), timeout=CANCEL_SECONDS)
