"""What is registered for scripts of cases: flags, checks, and classes of attempts. Files `script` of features do it.

A script is joined from ordinary modules. A flag says for a case which branch of `if NAME:` in them it takes; engines'
clients import the names that they use from `adapters/spec/script/given.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from coldproof.harness import feature_files
from coldproof.harness.case.reproducer.kit.story import Story
from coldproof.harness.feature_files import Ordered
from coldproof.harness.schema.case import Case, RequestRow
from coldproof.harness.workload.steps import Action, Request, Segment, Workload, all_changes


class ScriptCase(msgspec.Struct, frozen=True, kw_only=True):
    """A case, with the workload that its script plays. `generated`: the script makes its model."""

    case: Case
    workload: Workload
    generated: bool

    @property
    def requests(self) -> list[Request]:
        """Return the requests, in order."""
        return [request for _, _, request in self.workload.requests()]

    @property
    def segments(self) -> list[Segment]:
        """Return the segments of all prompts."""
        return [segment for request in self.requests for segment in request.prompt.segments]

    @property
    def changes(self) -> list[Action]:
        """Return all steps that are not bursts, those during bursts included."""
        return list(all_changes(self.workload))

    @property
    def command(self) -> str:
        """Return the command of the engine's server; empty without one."""
        return self.case.engine_config.get("command", "")

    @property
    def failing(self) -> RequestRow | None:
        """Return the row of the failing request, if the failure is in one."""
        return next((row for row in self.case.requests if row.request == self.case.failing_request), None)


class Call(msgspec.Struct, frozen=True):
    """A call of a function that says whether an attempt has shown the bug: with the attempt, then these arguments."""

    function: Callable[..., bool]
    arguments: tuple[object, ...] = ()

    def __str__(self) -> str:
        return f"{self.function.__name__}({', '.join(['story', *map(repr, self.arguments)])})"


class Flag(msgspec.Struct, frozen=True, kw_only=True):
    """A function that says whether a case uses something. Several functions may say it of one name.

    `method`: what a client must have for it; empty: nothing of its own. `alone`: the requests of such a case cannot be
    sent by one call that waits for all answers. `compared`: more than the tokens of an answer is compared.
    """

    name: str
    holds: Callable[[ScriptCase], bool]
    method: str = ""
    alone: bool = False
    compared: bool = False


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """A function that returns the call for the cases that it knows. The first one in order decides.

    `flag`: it is left out where the flag is off, for example because the client lacks what it needs.
    """

    call: Callable[[ScriptCase], Call | None]
    flag: str = ""


FLAGS: list[Flag] = []
CHECKS: Ordered[Check] = Ordered("script")
ATTEMPTS: dict[str, type[Story]] = {}
Holds = Callable[[ScriptCase], bool]
Chooses = Callable[[ScriptCase], Call | None]


def flag(name: str, *, method: str = "", alone: bool = False, compared: bool = False) -> Callable[[Holds], Holds]:
    """Register a function as one that says whether a flag is on. See `Flag`."""

    def register(function: Holds) -> Holds:
        FLAGS.append(Flag(name=name, holds=function, method=method, alone=alone, compared=compared))
        return function

    return register


def script_check(order: int, *, flag: str = "") -> Callable[[Chooses], Chooses]:
    """Register a function that chooses the check of some cases. See `Check`. Raises ValueError for a taken place."""

    def register(function: Chooses) -> Chooses:
        CHECKS.put(order, Check(call=function, flag=flag), function)
        return function

    return register


def attempt_with(flag: str, kind: type[Story]) -> None:
    """Register the class of attempts for cases with a flag. It extends `Story`."""
    ATTEMPTS[flag] = kind


def registered_flags() -> list[Flag]:
    """Return what is registered of flags, by all files."""
    feature_files.load("script")
    return FLAGS


def flags_with(trait: Callable[[Flag], object]) -> set[str]:
    """Return the names of the flags that have a trait."""
    return {one.name for one in registered_flags() if trait(one)}


def true_flags(about: ScriptCase) -> dict[str, bool]:
    """Return each registered flag of a case."""
    found: dict[str, bool] = {}
    for one in registered_flags():
        found[one.name] = one.holds(about) or found.get(one.name, False)
    return found


def first_call(about: ScriptCase, flags: dict[str, bool]) -> Call:
    """Return the call that says whether a script has shown the bug."""
    chosen = (one for one in CHECKS.load() if not one.flag or flags[one.flag])
    return next(call for one in chosen if (call := one.call(about)) is not None)


def attempts(flags: dict[str, bool]) -> list[type[Story]]:
    """Return the classes that an attempt of a case needs, besides `Story`."""
    feature_files.load("script")
    return [kind for name, kind in sorted(ATTEMPTS.items()) if flags[name]]


def imports(parts: Iterable[Callable[..., object]]) -> list[str]:
    """Return the imports of functions and classes."""
    return [f"from {part.__module__} import {part.__name__}" for part in parts]
