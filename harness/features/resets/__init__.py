"""Resets of the prefix cache, also while requests run, and aborted requests."""

USES = ("lora", "pressure", "tiers")
