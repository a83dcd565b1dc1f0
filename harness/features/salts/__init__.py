"""Cache salts, and prompts that differ in one token."""

USES = ("options",)
