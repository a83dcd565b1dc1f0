"""Faults of block content: published too early, stale weights, cache groups."""
