"""Faults of the second KV tier."""
