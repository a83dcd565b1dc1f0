"""Writes values into a script as Python literals, on lines of a width that people read."""

from __future__ import annotations

from typing import Any

WIDTH = 120


def literal(value: Any) -> str:
    """Return a value as a literal. A dict that is too long for a line has several entries in each of its lines."""
    text = repr(value)
    if len(text) < WIDTH or not isinstance(value, dict):
        return text
    lines = [""]
    for entry in (f"{key!r}: {one!r}," for key, one in value.items()):
        if len(lines[-1]) + len(entry) >= WIDTH - 4:
            lines.append("")
        lines[-1] += f" {entry}" if lines[-1] else entry
    return "\n".join(["{", *(f"    {line}" for line in lines), "}"])
