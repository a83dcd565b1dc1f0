"""Prompts with embedding rows in place of tokens."""
