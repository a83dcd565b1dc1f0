"""Updates of the weights and pauses by SGLang's routes.

SGLang documents them in "SGLang for RL Systems". What the modes of a pause do, and that an update flushes the cache by
default, is from its source (0.5.23: PauseGenerationReqInput, UpdateWeightFromDiskReqInput in managers/io_struct.py).

| pause | SGLang |
|---|---|
| abort | `abort`, then /flush_cache if the cache is to be cleared |
| keep, cache cleared | `retract`: requests go back to the queue without their KV; then /flush_cache |
| keep, cache not cleared, updates flush | `retract`: no flush is possible while requests stay in place |
| keep, cache not cleared, updates do not flush | `in_place`: requests go on with their KV |
| wait | does not exist: an update without a pause waits by itself until no request runs |
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.protocol.engine import EngineError, MalformedAnswer, RequestRefused
from coldproof.adapters.protocol.weights import PauseMode, WeightPolicy, WeightRoute
from coldproof.adapters.server.answers import decoded
from coldproof.adapters.server.engine import ServerEngine
from coldproof.adapters.server.openapi import listed_routes
from coldproof.adapters.sglang.client import SglangClient
from coldproof.adapters.spec.weight_promise import WeightPromise

UPDATE, CHECKER = "/update_weights_from_disk", "/weights_checker"
PAUSE, CONTINUE, FLUSH = "/pause_generation", "/continue_generation", SglangClient.reset_path
# An aborted request may still be in the scheduler when the pause is confirmed. With a timeout, a flush waits until the
# queue is empty, which it is not after a retraction (0.5.23: SchedulerFlushWrapper).
FLUSH_SECONDS = 10
FLUSH_SETTING = "flush_cache of updates"
LISTED = {
    (UPDATE,): (Capability.WEIGHT_UPDATES, Capability.WEIGHTS_FROM_PATH, Capability.WEIGHTS_SAME_PATH),
    (PAUSE, CONTINUE): (Capability.PAUSE_ABORT, Capability.PAUSE_KEEP),
}
WITHOUT_ROUTE = {
    Capability.WEIGHTS_IN_PLACE: Support(False, "Coldproof sends no tensors: the routes for them need a process group"),
    Capability.PAUSE_WAIT: Support(False, "no mode of /pause_generation waits; an update without a pause waits itself"),
    Capability.SLEEP: Support(False, "/release_memory_occupation needs --enable-memory-saver and a GPU: not used"),
}
WEIGHTS = WeightPromise(
    policy=WeightPolicy.INVALIDATES,
    caller="nothing else to call: /update_weights_from_disk flushes the cache unless flush_cache is false",
    link="https://docs.sglang.io/advanced_features/sglang_for_rl.html",
)


class RankChecksum(msgspec.Struct, frozen=True):
    """The checksum of one rank's parameters."""

    per_gpu_checksum: str


class Checksums(msgspec.Struct, frozen=True):
    """The answer of /weights_checker to the action `checksum`."""

    ranks: list[RankChecksum]


def probe_weights(client: SglangClient) -> dict[Capability, Support]:
    """Return the capabilities of these routes. Only the checksum is requested: the others change or stop something."""
    routes, found = listed_routes(client), dict(WITHOUT_ROUTE)
    for needed, capabilities in LISTED.items():
        there = routes.issuperset(needed)
        how = f"the server {'lists' if there else 'does not list'} {' and '.join(needed)} in /openapi.json"
        found |= dict.fromkeys(capabilities, Support(there, how))
    try:
        ranks = read_checksums(client).ranks if CHECKER in routes else []
        how = f"{CHECKER}: checksums of {len(ranks)} ranks" if ranks else f"the server does not list {CHECKER}"
        found[Capability.WEIGHT_CHECKSUM] = Support(bool(ranks), how)
    except (RequestRefused, MalformedAnswer) as problem:
        found[Capability.WEIGHT_CHECKSUM] = Support(False, f"{CHECKER}: {problem}")
    return found


def read_checksums(client: SglangClient) -> Checksums:
    """Send POST /weights_checker and return the checksum of each rank."""
    answer = client.post(CHECKER, {"action": "checksum"})
    return decoded(answer, Checksums, "a checksum of each rank's parameters")


def pause_mode(mode: PauseMode | str, *, clear: bool, flushes: bool) -> str:
    """Return SGLang's name of a pause. `flushes`: an update flushes the cache, which is SGLang's default."""
    if mode == PauseMode.ABORT.value:
        return "abort"
    return "retract" if clear or flushes else "in_place"


def updates_flush(config: Mapping[str, str]) -> bool:
    """Return whether updates flushed the cache of an engine with this configuration."""
    return config.get(FLUSH_SETTING) != "false"


class SglangEngine(ServerEngine):
    """An SGLang server, with its own routes for weights, pauses and sessions."""

    client: SglangClient
    in_place = False  # requests are paused with their KV

    @property
    def flush_on_update(self) -> bool:
        """Whether an update flushes the cache. A case records it with the configuration."""
        return updates_flush(self.config)

    @flush_on_update.setter
    def flush_on_update(self, on: bool) -> None:
        self.config = {**self.config, FLUSH_SETTING: str(on).lower()}

    def update_weights(self, path: str, _route: WeightRoute) -> None:
        """Send POST /update_weights_from_disk. Without a pause, the server first waits until no request runs."""
        flush = self.flush_on_update and not self.in_place
        self.client.post(UPDATE, {"model_path": path, "flush_cache": flush})

    def weights_checksum(self) -> str | None:
        """Return a digest of the checksums of all ranks."""
        checksums = read_checksums(self.client)
        return hashlib.sha256(" ".join(rank.per_gpu_checksum for rank in checksums.ranks).encode()).hexdigest()

    def pause(self, mode: PauseMode, *, clear: bool) -> None:
        """Pause generation. If the cache cannot be cleared, continue again and raise RequestRefused."""
        name = pause_mode(mode, clear=clear, flushes=self.flush_on_update)
        self.client.post(PAUSE, {"mode": name})
        self.in_place = name == "in_place"
        if not clear:
            return
        try:
            self.client.post(f"{FLUSH}?timeout={FLUSH_SECONDS}" if name == "abort" else FLUSH)
        except EngineError:
            self.resume()
            raise

    def close_session(self, name: str, *, aborted: bool) -> None:  # noqa: ARG002 - between turns, no request is aborted
        """Send POST /close_session, if the session is open."""
        self.client.sessions.end(self.client, name)

    def resume(self) -> None:
        """Continue generation."""
        self.client.post(CONTINUE, {})
        self.in_place = False
