"""Updates of the weights, pauses and sleep of the in-process engine, by the calls that vLLM's server makes.

The server's routes are /collective_rpc (reload_weights), /weight_checker, /pause, /resume, /sleep and /wake_up.
"""

from __future__ import annotations

import abc
import hashlib
import json
from contextlib import AbstractContextManager

from coldproof.adapters.common.wake_route import WAKE_TAGS
from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.protocol.weights import PauseMode, SleepPart, WeightRoute
from coldproof.adapters.vllm.inproc.front_end import FrontEnd
from coldproof.adapters.vllm.inproc.refusals import refusals
from coldproof.adapters.vllm.inproc.setup import InprocEngineParts
from coldproof.adapters.vllm.weight_loading import change_to
from coldproof.adapters.vllm.weight_support import ON_A_CPU, discards, transfer_support

RELOAD = "collective_rpc('reload_weights', weights_path=...)"
PAUSE, CHECKSUMS = "pause_scheduler", "compute_weight_checksums"  # methods that older versions do not have
NO_PAUSE = "in one process, vLLM clears before the tier's own process has stored what it holds; over HTTP it waits"
NO_WAIT = "vLLM refuses it: 'wait' mode can't be used in inproc-engine mode"
APPLY, TRANSFER = "apply_model", ("start_weight_update", "update_weights", "finish_weight_update")


def weight_controls(
    parts: InprocEngineParts, *, digests: bool, on_cpu: bool, transfers: bool, outside: bool
) -> dict[Capability, Support]:
    """Return the support of updates, pauses and sleep. `digests`: the engine has the fingerprint worker.

    `transfers`: the backend for weight transfer is configured. `outside`: a second tier copies in a process of its own.
    """
    memory_stays = digests or on_cpu
    pauses, checksums = has_method(parts, PAUSE), has_method(parts, CHECKSUMS)
    pauses = Support(False, NO_PAUSE) if outside else pauses
    enabled = bool(getattr(parts.engine.vllm_config.model_config, "enable_sleep_mode", False))
    by_flag = f"--enable-sleep-mode is {'set' if enabled else 'not set'}"
    can_sleep = Support(enabled or memory_stays, ON_A_CPU if memory_stays else by_flag)
    sleep = can_sleep if pauses.present else pauses
    return {
        Capability.WEIGHT_UPDATES: Support(True, f"the engine's own {RELOAD}"),
        Capability.WEIGHTS_FROM_PATH: Support(True, RELOAD),
        Capability.WEIGHTS_SAME_PATH: Support(True, f"{RELOAD} with the same path"),
        Capability.WEIGHTS_IN_PLACE: Support(True, f"a function for the engine's own {APPLY}"),
        Capability.WEIGHTS_TRANSFER: transfer_support(worker_method(parts, TRANSFER[0]), configured=transfers),
        Capability.WEIGHT_CHECKSUM: checksums,
        Capability.PAUSE_ABORT: pauses,
        Capability.PAUSE_WAIT: Support(False, NO_WAIT),
        Capability.PAUSE_KEEP: pauses,
        Capability.SLEEP: sleep,
        Capability.SLEEP_DISCARDS: discards(sleep, digests=digests, on_cpu=on_cpu),
    }


def has_method(parts: InprocEngineParts, name: str) -> Support:
    """Return whether this version's engine core has a method."""
    there = hasattr(parts.core, name)
    return Support(there, f"the engine core {'has' if there else 'does not have'} {name}")


def worker_method(parts: InprocEngineParts, name: str) -> Support:
    """Return whether this version's worker has a method."""
    there = hasattr(parts.core.model_executor.driver_worker.worker, name)
    return Support(there, f"the worker {'has' if there else 'does not have'} {name}")


class WeightControl(abc.ABC):
    """The methods of `ChangesWeights`, `Pauses` and `Sleeps`. Each raises RequestRefused if vLLM refuses."""

    @abc.abstractmethod
    def entered(self) -> AbstractContextManager[InprocEngineParts]:
        """Hold the lock of vLLM's global state. Raises EngineDied if the engine has terminated."""

    @abc.abstractmethod
    def end_aborted(self) -> None:
        """End the requests that the scheduler has dropped."""

    def update_weights(self, path: str, route: WeightRoute) -> None:
        """Load the weights in a folder, between two steps."""
        with self.entered() as parts, refusals():
            call = parts.engine.collective_rpc
            match route:
                case WeightRoute.IN_PLACE:
                    parts.engine.apply_model(change_to(path, parts.engine.vllm_config.model_config))
                case WeightRoute.TRANSFER:
                    call(TRANSFER[0])
                    call(TRANSFER[1], kwargs={"update_info": {"path": path}})
                    call(TRANSFER[2])
                case _:
                    call("reload_weights", kwargs={"weights_path": path})

    def weights_checksum(self) -> str | None:
        """Return a digest of the checksums of all parameters."""
        with self.entered() as parts, refusals():
            checksums = parts.core.compute_weight_checksums()
        return hashlib.sha256(json.dumps(checksums, sort_keys=True).encode()).hexdigest()

    def pause(self, mode: PauseMode, *, clear: bool) -> None:
        """Pause the scheduler."""
        with self.entered() as parts, refusals():
            FrontEnd(parts.engine).call("pause_generation", mode=mode.value, clear_cache=clear)
        self.end_aborted()

    def resume(self) -> None:
        """Resume the scheduler."""
        with self.entered() as parts, refusals():
            FrontEnd(parts.engine).call("resume_generation")

    def sleep(self, level: int) -> None:
        """Let the engine sleep. It aborts the requests in flight."""
        with self.entered() as parts, refusals():
            FrontEnd(parts.engine).call("sleep", level)
        self.end_aborted()

    def wake(self, part: SleepPart = SleepPart.ALL) -> None:
        """Wake a part of the engine up."""
        with self.entered() as parts, refusals():
            FrontEnd(parts.engine).call("wake_up", [WAKE_TAGS[part]] if part in WAKE_TAGS else None)
