"""Confirms a counterexample by replays on fresh engines, alone or after prior workloads."""
