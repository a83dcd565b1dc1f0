"""Hypothesis strategies that draw whole workloads."""
