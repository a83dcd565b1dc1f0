"""JSON that people read and compare: a value that fits stands on one line, and short values fill their lines."""

from __future__ import annotations

import json
from typing import Any

WIDTH = 120  # characters of a line
STEP = 2  # spaces of each level


def indented(value: Any, indent: int = 0, taken: int = 0) -> str:
    """Return a value of plain types (dict, list, str, numbers, bool, None) as JSON, in the order of its keys.

    `indent`: the spaces before the line in which it begins. `taken`: the other characters of that line.
    """
    text = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or not value or len(text) + indent + taken <= WIDTH:
        return text
    inner = indent + STEP
    keyed = isinstance(value, dict)
    members = value.items() if isinstance(value, dict) else enumerate(value)
    lines: list[str] = []
    open_line = False  # the last line has scalars only, so that another one may follow in it
    for key, member in members:
        name = f"{json.dumps(key, ensure_ascii=False)}: " if keyed else ""
        part = name + indented(member, inner, len(name) + 1)
        scalar = not isinstance(member, dict | list)
        if scalar and open_line and inner + len(lines[-1]) + len(part) + len(", ,") <= WIDTH:
            lines[-1] += f", {part}"
        else:
            lines.append(part)
        open_line = scalar
    body = ",\n".join(" " * inner + line for line in lines)
    return f"{text[0]}\n{body}\n{' ' * indent}{text[-1]}"
