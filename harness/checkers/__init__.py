"""Checkers: pure functions of a history and the oracle's answers."""
