"""The cells of vLLM that each profile has, for each worker. A profile that is not named here has all cells."""

from __future__ import annotations

from coldproof.adapters.spec.engine_spec import MODEL
from coldproof.adapters.vllm.cells.cell import FINGERPRINT

FEW = ("default", "tight")
EVENT_AND_TIER_CELLS = ("events", "events-tight", "events-window", "tier-offload", "tier-files", "tier-failing")
CI = (
    "default",
    "tight",
    "tight-priority",
    "priority",
    "small-chunks",
    "runner-v2",
    "speculative-eagle",
    "embeds",
    "embeds-tight",
    "images",
    "images-tight",
    "pooling",
    "pooling-tight",
    "groups-window",
    "groups-window-eagle",
    "groups-window-mtp",
    "groups-window-fitting",
    "groups-window-tight",
    "groups-five",
    "groups-five-long",
    "groups-state",
    *EVENT_AND_TIER_CELLS,
    "tier-files-few",
    "tier-files-lost",
    "tier-failing-shared-steps",
    "tier-offload-window",
)
PROFILES: dict[str, dict[str, tuple[str, ...]]] = {
    "smoke": {
        MODEL: FEW,
        FINGERPRINT: (
            *FEW,
            "embeds",
            "images",
            "images-tight",
            "pooling",
            "groups-window",
            "groups-state",
            *EVENT_AND_TIER_CELLS,
        ),
    },
    # Over HTTP, the front end has a cache of images of its own.
    "ci": {MODEL: (*FEW, "tight-priority", "images-model"), FINGERPRINT: CI},
    "soak": dict.fromkeys((MODEL, FINGERPRINT), ("tight",)),
    # What the worker of an out-of-tree platform can get wrong, beside all that needs no worker: hits that end within a
    # chunk, evicted and resumed requests, several groups. See docs/hardware-plugins.md.
    "hardware": {MODEL: (*FEW, "small-chunks", "sliding-window"), FINGERPRINT: CI},
    "wide": dict.fromkeys((MODEL, FINGERPRINT), FEW),
}
