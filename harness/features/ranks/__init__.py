"""Data-parallel and context-parallel ranks of one engine."""
