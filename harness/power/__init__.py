"""Measures detection power: runs the suites against engines with injected faults."""
