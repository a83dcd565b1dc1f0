"""Which routes of an update and which sleeps a vLLM has, beyond what its methods and routes show."""

from __future__ import annotations

from collections.abc import Mapping

from coldproof.adapters.protocol.capabilities import Capability, Support

CONFIGURED = Support(True, "Coldproof's backend for weight transfer is configured, which reads weights from a folder")
NO_BACKEND = "no backend for weight transfer is configured: see cell weight-transfer"
ON_A_CPU = "on a CPU a sleep only clears the cache and stops the scheduler"
STAYS = "vLLM's CPUWorker ignores a sleep at level 2 ('sleep mode is not supported on CPU'): the weights stay"
FORGETS = Support(True, "the fingerprint worker forgets its weights at level 2, as a GPU discards them")


def transfer_support(methods: Support, *, configured: bool) -> Support:
    """Return whether weights can be transferred. `methods`: whether this vLLM has the methods or routes for it."""
    if methods.present is False:
        return methods
    return CONFIGURED if configured else Support(False, NO_BACKEND)


def discards(sleep: Support, *, digests: bool, on_cpu: bool) -> Support:
    """Return whether a sleep can discard the weights. `digests`: the engine has the fingerprint worker."""
    if sleep.present is not True:
        return sleep
    if digests:
        return FORGETS
    return Support(False, STAYS) if on_cpu else sleep


def of_server(
    probed: Mapping[Capability, Support], *, transfers: bool, digests: bool, on_cpu: bool, sleep_flag: str
) -> dict[Capability, Support]:
    """Return the support that the routes of a spawned server leave open. `sleep_flag`: "" if it is not set."""
    sleep = probed[Capability.SLEEP]
    if sleep.present is None and on_cpu:
        sleep = Support(True, f"the server lists /sleep; {ON_A_CPU}")
    elif sleep.present is None and sleep_flag:
        sleep = Support(True, f"the server lists /sleep, and {sleep_flag} is set")
    return {
        Capability.WEIGHTS_TRANSFER: transfer_support(probed[Capability.WEIGHTS_TRANSFER], configured=transfers),
        Capability.SLEEP: sleep,
        Capability.SLEEP_DISCARDS: discards(sleep, digests=digests, on_cpu=on_cpu),
    }
