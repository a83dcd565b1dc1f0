"""Updates of the weights, pauses and sleep of the in-process engine, by the calls that vLLM's server makes.

The server's routes are /collective_rpc (reload_weights), /weight_checker, /pause, /resume, /sleep and /wake_up.
"""

from __future__ import annotations

import abc
import hashlib
import json
from contextlib import AbstractContextManager

from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.protocol.weights import PauseMode, WeightRoute
from coldproof.adapters.vllm.inproc.refusals import refusals
from coldproof.adapters.vllm.inproc.setup import InprocEngineParts

RELOAD = "collective_rpc('reload_weights', weights_path=...)"
PAUSE, CHECKSUMS = "pause_scheduler", "compute_weight_checksums"  # methods that older versions do not have
NO_WAIT = "vLLM refuses it: 'wait' mode can't be used in inproc-engine mode"
NOT_IN_PLACE = "reload_weights copies into the same parameters; there is no other route in this process"


def weight_controls(parts: InprocEngineParts, *, memory_stays: bool) -> dict[Capability, Support]:
    """Return the support of updates, pauses and sleep. `memory_stays`: a sleep releases no memory, as on a CPU."""
    pauses, checksums = has_method(parts, PAUSE), has_method(parts, CHECKSUMS)
    enabled = bool(getattr(parts.engine.vllm_config.model_config, "enable_sleep_mode", False))
    on_cpu = "on a CPU a sleep only clears the cache and stops the scheduler"
    by_flag = f"--enable-sleep-mode is {'set' if enabled else 'not set'}"
    sleeps = pauses.present is True and (enabled or memory_stays)
    return {
        Capability.WEIGHT_UPDATES: Support(True, f"the engine's own {RELOAD}"),
        Capability.WEIGHTS_FROM_PATH: Support(True, RELOAD),
        Capability.WEIGHTS_SAME_PATH: Support(True, f"{RELOAD} with the same path"),
        Capability.WEIGHTS_IN_PLACE: Support(False, NOT_IN_PLACE),
        Capability.WEIGHT_CHECKSUM: checksums,
        Capability.PAUSE_ABORT: pauses,
        Capability.PAUSE_WAIT: Support(False, NO_WAIT),
        Capability.PAUSE_KEEP: pauses,
        Capability.SLEEP: Support(sleeps, on_cpu if memory_stays else by_flag) if pauses.present else pauses,
    }


def has_method(parts: InprocEngineParts, name: str) -> Support:
    """Return whether this version's engine core has a method."""
    there = hasattr(parts.core, name)
    return Support(there, f"the engine core {'has' if there else 'does not have'} {name}")


class WeightControl(abc.ABC):
    """The methods of `ChangesWeights`, `Pauses` and `Sleeps`. Each raises RequestRefused if vLLM refuses."""

    @abc.abstractmethod
    def entered(self) -> AbstractContextManager[InprocEngineParts]:
        """Hold the lock of vLLM's global state. Raises EngineDied if the engine has terminated."""

    @abc.abstractmethod
    def end_aborted(self) -> None:
        """End the requests that the scheduler has dropped."""

    def update_weights(self, path: str, _route: WeightRoute) -> None:
        """Load the weights in a folder, between two steps."""
        with self.entered() as parts, refusals():
            parts.engine.collective_rpc("reload_weights", kwargs={"weights_path": path})

    def weights_checksum(self) -> str | None:
        """Return a digest of the checksums of all parameters."""
        with self.entered() as parts, refusals():
            checksums = parts.core.compute_weight_checksums()
        return hashlib.sha256(json.dumps(checksums, sort_keys=True).encode()).hexdigest()

    def pause(self, mode: PauseMode, *, clear: bool) -> None:
        """Pause the scheduler."""
        with self.entered() as parts, refusals():
            parts.core.pause_scheduler(mode.value, clear)
        self.end_aborted()

    def resume(self) -> None:
        """Resume the scheduler."""
        with self.entered() as parts, refusals():
            parts.core.resume_scheduler()

    def sleep(self, level: int) -> None:
        """Let the engine sleep. It aborts the requests in flight."""
        with self.entered() as parts, refusals():
            parts.engine.sleep(level)
        self.end_aborted()

    def wake(self) -> None:
        """Wake the engine up."""
        with self.entered() as parts, refusals():
            parts.engine.wake_up()
