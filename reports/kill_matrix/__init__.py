"""Renders power.json as a page: the kill matrix."""
