"""Generates the tiny models and LoRA adapters, and keeps those that an engine accepts."""
