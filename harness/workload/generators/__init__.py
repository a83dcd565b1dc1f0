"""Hypothesis strategies that draw workloads, one file for each area of requirements."""
