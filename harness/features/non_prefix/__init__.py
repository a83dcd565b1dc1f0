"""Reuse of KV at other positions than those at which it was computed."""

USES = ("lora",)
