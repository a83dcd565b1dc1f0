"""Runs the suites against several releases of one engine, one environment after the other."""
