"""Prefill and decode on engines apart, and what reaches one of them first or not at all."""

USES = ("lora", "pressure")
