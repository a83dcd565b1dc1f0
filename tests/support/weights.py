"""Hand-made histories with weight updates and pauses."""

from __future__ import annotations

from typing import Any

import msgspec
from support.histories import history

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.requests import Token
from coldproof.adapters.protocol.weights import PauseMode, WeightRoute
from coldproof.harness.history.records import History, Outcome, PauseRecord, ResetRecord, WeightUpdate
from coldproof.harness.history.weights import with_weights

NEW = "digest-new"


def update(began: float, ended: float | None = None, **more: Any) -> WeightUpdate:
    """Return an update to the new weights."""
    facts: dict[str, Any] = {"version": "A", "weights": NEW, "route": WeightRoute.PATH, **more}
    return WeightUpdate(began=began, ended=began if ended is None else ended, **facts)


def pause(began: float, running: float | None, mode: PauseMode = PauseMode.KEEP, **more: Any) -> PauseRecord:
    """Return a pause that begins and ends in no time."""
    return PauseRecord(began=began, ended=began, mode=mode, clear=True, resumed=running, running=running, **more)


def reset(at: float, *, success: bool = True) -> ResetRecord:
    """Return a reset that takes no time."""
    return ResetRecord(began=at, ended=at, success=success)


def history_with_updates(*outcomes: Outcome, **changes: Any) -> History:
    """Return a history in which every outcome has the identities that its updates and pauses allow."""
    updates, pauses = changes.get("updates", ()), changes.get("pauses", ())
    return history(*(with_weights(one, updates, pauses) for one in outcomes), **changes)


def with_tokens(one: Outcome, *times: float) -> Outcome:
    """Return an outcome whose tokens arrived at these times."""
    return msgspec.structs.replace(one, tokens=tuple(Token(id=7, at=at - one.sent) for at in times))


# What SGLang can change and pause, all of it over HTTP.
SGLANG_CONTROLS = {
    Capability.WEIGHT_UPDATES,
    Capability.WEIGHTS_FROM_PATH,
    Capability.WEIGHTS_SAME_PATH,
    Capability.WEIGHT_CHECKSUM,
    Capability.PAUSE_ABORT,
    Capability.PAUSE_KEEP,
}
# What vLLM can change, pause and reset while it runs, in process and over HTTP. Only its server has a pause that waits.
VLLM_CONTROLS = {
    Capability.RESET_RUNNING,
    Capability.WEIGHT_UPDATES,
    Capability.WEIGHTS_FROM_PATH,
    Capability.WEIGHTS_SAME_PATH,
    Capability.WEIGHT_CHECKSUM,
    Capability.PAUSE_ABORT,
    Capability.PAUSE_KEEP,
    Capability.SLEEP,
}
