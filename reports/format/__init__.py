"""Escapes engine output, and formats numbers, durations and Markdown."""
