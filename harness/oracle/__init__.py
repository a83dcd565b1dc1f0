"""Oracles: what a cold start would have answered."""
