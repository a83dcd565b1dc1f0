"""Faults of block hashes: tokens, LoRA adapters, salts."""
