"""Updates of the weights, pauses and sleep over HTTP, by the routes of vLLM's server.

vLLM has these routes with VLLM_SERVER_DEV_MODE=1 only. They are documented in "Sleep Mode" and "Async Reinforcement
Learning" of vLLM's manual.
"""

from __future__ import annotations

import hashlib
import json

import msgspec

from coldproof.adapters.common.wake_route import WAKE_PATH, wake_path
from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.protocol.weights import PauseMode, SleepPart, WeightRoute
from coldproof.adapters.server.answers import decoded
from coldproof.adapters.server.client import HttpClient
from coldproof.adapters.server.openapi import OPENAPI, listed_routes

RPC, CHECKER, PAUSE, RESUME = "/collective_rpc", "/weight_checker", "/pause", "/resume"
SLEEP = "/sleep"
START, TRANSFER, FINISH = "/start_weight_update", "/update_weights", "/finish_weight_update"
NEEDED = {
    (RPC,): (Capability.WEIGHT_UPDATES, Capability.WEIGHTS_FROM_PATH, Capability.WEIGHTS_SAME_PATH),
    (CHECKER,): (Capability.WEIGHT_CHECKSUM,),
    (PAUSE, RESUME): (Capability.PAUSE_ABORT, Capability.PAUSE_WAIT, Capability.PAUSE_KEEP),
    (SLEEP, WAKE_PATH): (Capability.SLEEP, Capability.SLEEP_DISCARDS),
    (START, TRANSFER, FINISH): (Capability.WEIGHTS_TRANSFER,),
}
SLEEP_UNKNOWN = "the server lists /sleep, but it may lack --enable-sleep-mode; a probe would abort requests"
UNKNOWN = {
    Capability.SLEEP: SLEEP_UNKNOWN,
    Capability.SLEEP_DISCARDS: SLEEP_UNKNOWN,
    Capability.WEIGHTS_TRANSFER: f"the server lists {TRANSFER}, but what it reads depends on its backend",
}
IN_PLACE = Support(False, "the server has no route that changes parameters in place")


class Checksums(msgspec.Struct, frozen=True):
    """The answer of /weight_checker: a checksum for each parameter."""

    checksums: dict[str, str]


def probe_weights(client: HttpClient) -> dict[Capability, Support]:
    """Return which of these routes the server lists. Nothing is called that changes or stops anything."""
    listed, found = listed_routes(client), {Capability.WEIGHTS_IN_PLACE: IN_PLACE}
    for routes, capabilities in NEEDED.items():
        there = listed.issuperset(routes)
        how = f"the server {'lists' if there else 'does not list'} {' and '.join(routes)} in {OPENAPI}"
        found |= dict.fromkeys(capabilities, Support(there, how))
    for capability, how in UNKNOWN.items():  # vLLM lists the routes also where they fail
        if found[capability].present:
            found[capability] = Support(None, how)
    return found


class WeightRoutes:
    """The methods of `ChangesWeights`, `Pauses` and `Sleeps` over HTTP. Each raises RequestRefused if vLLM refuses."""

    client: HttpClient

    def update_weights(self, path: str, route: WeightRoute) -> None:
        """Let every worker load the weights in a folder. A transfer is started, made and finished."""
        if route is WeightRoute.TRANSFER:
            self.client.post(START)
            self.client.post(TRANSFER, {"update_info": {"path": path}})
            self.client.post(FINISH, {})
            return
        self.client.post(RPC, {"method": "reload_weights", "kwargs": {"weights_path": path}})

    def weights_checksum(self) -> str | None:
        """Return a digest of the checksums of all parameters."""
        answer = decoded(self.client.post(CHECKER, {"action": "checksum"}), Checksums, "a checksum of each parameter")
        return hashlib.sha256(json.dumps(answer.checksums, sort_keys=True).encode()).hexdigest()

    def pause(self, mode: PauseMode, *, clear: bool) -> None:
        """Pause generation."""
        self.client.post(f"{PAUSE}?mode={mode.value}&clear_cache={str(clear).lower()}")

    def resume(self) -> None:
        """Resume generation."""
        self.client.post(RESUME)

    def sleep(self, level: int) -> None:
        """Let the server sleep. It aborts the requests in flight."""
        self.client.post(f"{SLEEP}?level={level}")

    def wake(self, part: SleepPart = SleepPart.ALL) -> None:
        """Wake a part of the server up."""
        self.client.post(wake_path(part))
