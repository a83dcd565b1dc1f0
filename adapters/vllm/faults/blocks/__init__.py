"""Faults of block ownership: reference counts, leaks, lost hits."""
