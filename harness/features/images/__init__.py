"""Prompts with images, and the caches of their encoder and processor."""

USES = ("weights",)
