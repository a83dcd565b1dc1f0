"""Requests that say how much of their KV is loaded from a second tier, and how much is stored there."""

USES = ("pressure", "tiers")
