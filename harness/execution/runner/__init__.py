"""Runs a workload on an engine and records its history."""
