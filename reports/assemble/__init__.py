"""Assembles results from events."""
