"""Bugs of the past, planted again: see benchmarks/real_bugs."""
