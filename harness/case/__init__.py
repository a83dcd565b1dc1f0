"""Saves a counterexample: case file, signature, known issues, bug report, reproducer."""
