"""Two implementations of one part of an engine: the same workload on both."""

USES = ("preemption", "pressure", "resets")
