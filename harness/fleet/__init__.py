"""Runs many runs on many machines with Ray."""
