"""Copies the environment of this process while another thread changes it."""

from __future__ import annotations

import os


def current_environment() -> dict[str, str]:
    """Return the variables of this process.

    An engine that starts in a thread sets variables for its start and takes them away again. `dict(os.environ)` in
    another thread then fails with KeyError, because it looks each name up after it has listed them.
    """
    found = ((name, os.environ.get(name)) for name in list(os.environ))
    return {name: value for name, value in found if value is not None}
