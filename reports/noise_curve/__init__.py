"""Renders curve.json as a page: false positives and detected faults under score noise."""
