"""Reads, verifies, merges and re-evaluates stored runs."""
