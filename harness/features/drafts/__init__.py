"""Speculative decoding: drafts that are verified, and how many of them are accepted."""
