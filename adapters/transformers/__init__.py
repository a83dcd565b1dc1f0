"""Transformers' continuous batching in Coldproof's process."""
