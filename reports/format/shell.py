"""Writes text into shell commands that a reader may copy.

Invariant: text from an engine or a case file is a word, or is in a comment. It never starts a command of its own.
"""

from __future__ import annotations

import shlex

from coldproof.reports.format.text import one_line

_LONGEST = 100_000  # characters: a command is not cut


def word(text: str) -> str:
    """Return the text as one word on one line."""
    return shlex.quote(one_line(text, _LONGEST))


def command_line(text: str) -> str:
    """Return a recorded command as one command: its words are quoted anew. A comment stays one, on one line."""
    line = one_line(text, _LONGEST)
    if line.startswith("#"):
        return line
    try:
        return shlex.join(shlex.split(line))
    except ValueError:  # a quote that is not closed
        return shlex.quote(line)
