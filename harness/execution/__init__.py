"""Runs workloads: engines, oracles, calibration and the runner."""
