"""Writes text into TOML files."""

from __future__ import annotations

import json

from coldproof.reports.format.text import one_line, storable

_LONGEST_COMMENT = 2000  # characters; paths are long


def literal(value: str) -> str:
    """Return a text as TOML, which has JSON's escapes. Invisible characters are escaped too."""
    quoted = json.dumps(storable(value), ensure_ascii=False)
    return "".join(char if char.isprintable() else f"\\U{ord(char):08X}" for char in quoted)


def comment(text: str) -> str:
    """Return a text as a comment on one line."""
    return f"# {one_line(text, _LONGEST_COMMENT)}"
