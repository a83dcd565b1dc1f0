"""Faults of scheduling: preemption, resumption, aborts, resets, stalls."""
