"""Writes text into Python sources. A value is written with `repr`, which escapes every invisible character."""

from __future__ import annotations

import re

from coldproof.reports.format.text import one_line

_LONGEST = 20_000  # characters of a line


def docstring_line(text: str) -> str:
    """Return a text on one line that cannot end a docstring: without double quotes and backslashes."""
    return re.sub(r'["\\]', "'", one_line(text, _LONGEST))
