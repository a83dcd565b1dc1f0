"""The schema of what an attached server lets a run test, and of the switches that it lacks."""

from __future__ import annotations

import msgspec


class MissingSwitch(msgspec.Struct, frozen=True, kw_only=True):
    """A switch that the server is not known to have. `adds`: what it adds, in words.

    `adds_requirements`: the ids that cannot be tested without it, and can with it and all other missing switches;
    `alone`: how many can with it and no other one. `how`: what to type. `safe`: in production; `because`: why.
    """

    name: str
    adds: str
    adds_requirements: list[str]
    alone: int
    how: str
    safe: bool
    because: str


class ServerSwitches(msgspec.Struct, frozen=True, kw_only=True):
    """What a server lets a run test. `known`: Coldproof knows the switches of its engine.

    `requirements`: how many the run has; `now`: the ids of those that can be tested; `with_all`: how many can be with
    all missing switches.
    """

    engine: str
    known: bool
    requirements: int
    now: list[str]
    with_all: int
    missing: list[MissingSwitch] = []
