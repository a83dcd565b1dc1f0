"""How an engine's releases are installed, so that several of them can be tested on one machine."""

from __future__ import annotations

import msgspec


class ReleasePackage(msgspec.Struct, frozen=True, kw_only=True):
    """The distribution whose versions are an engine's releases.

    `dependencies`: whether pip also installs what it depends on, because that differs by release and is small.
    Otherwise a release uses what is installed: torch would be several GB for each.
    """

    name: str
    dependencies: bool = False
