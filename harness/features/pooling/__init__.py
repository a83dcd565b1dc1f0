"""Embeddings, scores and classes: vectors in place of tokens."""

USES = ("pressure", "salts")
