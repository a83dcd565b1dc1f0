"""Preemption of requests, and the order in which they are admitted."""

USES = ("pressure",)
