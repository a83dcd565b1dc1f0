"""Weights that change while the engine runs, as in reinforcement learning.

An engine does not have to forget its KV by itself when its weights change. It has to after the action for which it
promises that: a cache reset, a pause that clears the cache, a sleep, or another salt. A run tests what the engine
documents, and the verdict's reason says what that is.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.harness.features.lora.evidence import Adapters
from coldproof.harness.features.weights.evidence import Pauses, Weights
from coldproof.harness.features.weights.workloads import (
    paused,
    quiet_updates,
    updates_in_flight,
    updates_with_adapters,
)
from coldproof.harness.judgement.requirement import requirement
from coldproof.harness.session.system_under_test import SystemUnderTest

AREA = "weights that change"
TOKENS = (Capability.TOKEN_PROMPTS, Capability.TOKEN_OUTPUTS)
UPDATES = (*TOKENS, Capability.WEIGHT_UPDATES)
PAUSES = (*TOKENS, Capability.STREAMING, Capability.PAUSE_KEEP)
ROUTES = {
    Capability.WEIGHTS_FROM_PATH: Weights.UPDATES_FROM_PATH,
    Capability.WEIGHTS_SAME_PATH: Weights.UPDATES_SAME_PATH,
    Capability.WEIGHTS_IN_PLACE: Weights.UPDATES_IN_PLACE,
    Capability.WEIGHTS_TRANSFER: Weights.UPDATES_TRANSFER,
}
MODES = {
    Capability.PAUSE_ABORT: Pauses.ENDED_BY_PAUSE,
    Capability.PAUSE_WAIT: Pauses.FINISHED_BEFORE_PAUSE,
    Capability.PAUSE_KEEP: Pauses.KEPT_OVER_PAUSE,
}
UPDATE_CELLS = ("weight updates", "weight transfer")


@requirement(
    "WEIGHT-1",
    "new weights, and the invalidation that the engine documents",
    needs=UPDATES,
    suits=UPDATE_CELLS,
    shows=(Weights.AFTER_UPDATE, Adapters.DISCRIMINATING, Weights.RETURNS),
    shows_where={**ROUTES, Capability.SLEEP: Pauses.SLEEPS, Capability.SLEEP_DISCARDS: Pauses.DEEP_SLEEPS},
    upstream=("sglang#26792", "omni#6739"),
)
@given(data=st.data())
def test_new_weights(sut: SystemUnderTest, data: st.DataObject) -> None:
    """After an update of its weights and the invalidation that it documents, a conforming engine answers every request
    as the new weights cold, and hits nothing that was computed with other weights. The same holds after a return to
    earlier weights.

    Why it can break: the weights are not in the cache's key, so that all depends on the reset, which may leave blocks,
    a tier or a rank, or only report success. Oracle: a cold engine that was started with these weights. Vacuous when no
    request could have hit a block of other weights, or both weights answer alike.
    """
    sut.check_updates(data.draw(quiet_updates(sut.limits), label="workload"))


@requirement(
    "WEIGHT-2",
    "pause and resume",
    needs=PAUSES,
    suits=("weight updates",),
    shows=(Pauses.QUEUED_IN_PAUSE,),
    shows_where={**MODES, Capability.SLEEP: Pauses.ASLEEP},
)
@given(data=st.data())
def test_pauses(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A conforming engine does with the requests in flight what the mode of a pause says. `abort` ends them, `wait`
    finishes them before the pause, and `keep` continues them after it, also if the pause cleared the cache. Nothing is
    computed during a pause or a sleep, and everything that waited is answered after it.

    Why it can break: a pause returns before the requests have ended; a kept request resumes on KV that was discarded;
    the queue is not woken up; the engine computes when a part of it is awake. Oracle: cold start. Vacuous when no
    request was in flight at a pause of each mode, or none waited during one or arrived during a sleep.
    """
    sut.check(data.draw(paused(sut.limits, updates=False), label="workload"))


@requirement(
    "WEIGHT-2",
    "new weights during a pause",
    needs=(*PAUSES, Capability.WEIGHT_UPDATES),
    suits=("weight updates",),
    shows=(Weights.CONTINUED, Adapters.DISCRIMINATING),
)
@given(data=st.data())
def test_updates_during_pauses(sut: SystemUnderTest, data: st.DataObject) -> None:
    """If the weights are updated during a pause that cleared the cache, the rest of a kept answer equals the new
    weights' cold continuation of the prompt and the tokens so far. With mode `wait`, the whole answer is the old
    weights'.

    Why it can break: a request that is kept goes on with its KV of the old weights, or finds it in the cache again (a
    report about vLLM: NovaSky-AI/SkyRL PR 1836). Oracle: cold start with prompt and tokens so far, under the weights of
    each part. Vacuous when no answer was continued under new weights.
    """
    sut.check_updates(data.draw(paused(sut.limits, updates=True), label="workload"))


@requirement(
    "WEIGHT-3",
    "requests in flight over an update",
    needs=(*UPDATES, Capability.STREAMING),
    suits=UPDATE_CELLS,
    shows=(Weights.IN_FLIGHT, Weights.AFTER_IN_FLIGHT, Adapters.DISCRIMINATING),
    shows_where={Capability.CACHE_SALT: Weights.AFTER_IN_FLIGHT_SALT},
)
@given(data=st.data())
def test_requests_in_flight_over_an_update(sut: SystemUnderTest, data: st.DataObject) -> None:
    """What requests in flight over an update leave in the cache is never hit by a request of another version, after
    the invalidation that the engine documents: not by their next turns, not after a return to the old weights, and not
    by requests with the version as their salt.

    Why it can break: a request that was started with the old weights publishes its blocks after the update, and blocks
    that contain both are found by every later version (NVIDIA-NeMo/RL PR 4018: KV up to 17 updates old). Oracle: cold
    start with the current weights. Vacuous when no request was in flight over an update, or no later request shares a
    block with it.
    """
    sut.check_updates(data.draw(updates_in_flight(sut.limits), label="workload"))


@requirement(
    "WEIGHT-4",
    "adapters over an update of the base weights",
    needs=(*UPDATES, Capability.RUNTIME_LORA),
    suits=UPDATE_CELLS,
    shows=(Weights.ADAPTERS_AFTER_UPDATE, Adapters.DISCRIMINATING),
)
@given(data=st.data())
def test_adapters_over_an_update(sut: SystemUnderTest, data: st.DataObject) -> None:
    """After an update of the base model's weights and the documented invalidation, a conforming engine answers the
    requests of each loaded adapter as this adapter on the new weights cold.

    Why it can break: KV of an adapter depends on both, but its key has only the adapter; the update may also lose the
    adapter, or keep weights into which it was merged. Oracle: a cold engine that was started with the new weights, with
    the same adapter. Vacuous when no adapter's request could have hit a block of other base weights.
    """
    sut.check_updates(data.draw(updates_with_adapters(sut.limits), label="workload"))
