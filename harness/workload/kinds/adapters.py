"""Loads and unloads of adapters."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import ClassVar, Self

import msgspec

from coldproof.harness.workload.kinds.kind import Mark, State, StepKind


class Route(enum.StrEnum):
    """How an adapter is loaded under a name. Field reports show that each route can break the cache key separately."""

    LOAD = "load"
    IN_PLACE = "in-place reload"
    UNLOAD_LOAD = "unload, then load"
    SWITCH = "switch for all requests"


class SetAdapter(StepKind, frozen=True, kw_only=True, tag="set_adapter"):
    """Load adapter `content` as `name` from symbolic `path`. A path's files change when another content uses it."""

    reaches_every_rank: ClassVar[bool] = True
    varies: ClassVar[bool] = True

    name: str
    content: str
    path: str
    route: Route = Route.LOAD

    def describe(self) -> str:
        """Return the step in one line."""
        return f"{self.route.value}: adapter {self.content} as '{self.name}' from path {self.path}"

    def after(self, now: State) -> State | None:
        """Return the state with the name loaded. Engines refuse to load a loaded name, and to reload any other."""
        known = self.name in now.loaded
        if self.route is not Route.SWITCH and known is (self.route is Route.LOAD):
            return None
        return msgspec.structs.replace(now, loaded=now.loaded | {self.name})

    def during(self, now: State) -> State | None:
        """Return the state, which stays the same: during a burst, only a loaded name is changed."""
        return now if self.name in now.loaded else None

    def renamed(self, names: Mapping[str | None, str], /) -> Self:
        """Return the step with another name."""
        return msgspec.structs.replace(self, name=names.get(self.name, self.name))

    def mark(self) -> Mark:
        """Return the row."""
        return Mark(kind=self.route.value, name=self.name, content=self.content)


class Unload(StepKind, frozen=True, tag="unload"):
    """Unload the adapter with this name."""

    varies: ClassVar[bool] = True

    name: str

    def describe(self) -> str:
        """Return the step in one line."""
        return f"unload '{self.name}'"

    def after(self, now: State) -> State | None:
        """Return the state without the name, which must be loaded."""
        left = now.loaded - {self.name}
        return msgspec.structs.replace(now, loaded=left) if left != now.loaded else None

    def renamed(self, names: Mapping[str | None, str], /) -> Self:
        """Return the step with another name."""
        return msgspec.structs.replace(self, name=names.get(self.name, self.name))

    def mark(self) -> Mark:
        """Return the row."""
        return Mark(kind="unload", name=self.name)
