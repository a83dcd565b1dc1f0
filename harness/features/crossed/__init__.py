"""Configurations in which several features are on."""

USES = (
    "drafts",
    "images",
    "mixed",
    "preemption",
    "pressure",
    "resets",
    "rows",
    "sessions",
    "tiers",
    "transfer_limits",
    "weights",
)
