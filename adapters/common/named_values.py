"""Options of an engine that is no command line of its own, as a cell or a user writes them: `--NAME VALUE`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def named_values(arguments: Sequence[str], kind: str, read: Callable[[str], Any]) -> dict[str, Any]:
    """Return the values by name. `kind`: what each is, for the message. `read`: returns a value from its text.

    Raises ValueError for words that are no pairs, and what `read` raises.
    """
    names, values = arguments[::2], arguments[1::2]
    if len(names) != len(values) or not all(name.startswith("--") for name in names):
        raise ValueError(f"expected --NAME VALUE for each {kind}, not {' '.join(arguments)}")
    return {name.removeprefix("--"): read(value) for name, value in zip(names, values, strict=True)}
