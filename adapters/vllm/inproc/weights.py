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
CONTROLS = {
    Capability.WEIGHT_UPDATES: Support(True, f"the engine's own {RELOAD}"),
    Capability.WEIGHTS_FROM_PATH: Support(True, RELOAD),
    Capability.WEIGHTS_SAME_PATH: Support(True, f"{RELOAD} with the same path"),
    Capability.WEIGHTS_IN_PLACE: Support(False, "not tested here: reload_weights copies into the same parameters"),
    Capability.WEIGHT_CHECKSUM: Support(True, "the engine core's compute_weight_checksums"),
    Capability.PAUSE_ABORT: Support(True, "the engine core's pause_scheduler"),
    Capability.PAUSE_WAIT: Support(False, "vLLM refuses it: 'wait' mode can't be used in inproc-engine mode"),
    Capability.PAUSE_KEEP: Support(True, "the engine core's pause_scheduler"),
    Capability.SLEEP: Support(True, "the engine's own sleep and wake_up"),
}


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
