"""Measures false positives and detected faults under score noise."""
