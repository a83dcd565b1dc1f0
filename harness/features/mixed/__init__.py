"""Workloads in which several features meet."""

USES = ("lora", "options", "preemption", "pressure", "resets", "salts")
