"""Adapters: loads, and reloads under the same name."""
