"""Imports the suites, to list their requirements without a run."""

from __future__ import annotations

import functools
import importlib
import pkgutil

from coldproof import suites
from coldproof.harness.judgement.requirement import Requirement
from coldproof.harness.release.requirements.collected import declared_list
from coldproof.harness.release.requirements.frozen import FrozenList

UNRELEASED = "unreleased"


def list_of_suites(version: str = UNRELEASED) -> FrozenList:
    """Return the list of all requirements as the suites declare them now."""
    names = sorted(found.name for found in pkgutil.iter_modules(suites.__path__))
    return declared_list((importlib.import_module(f"{suites.__name__}.{name}") for name in names), version)


def declared() -> dict[str, Requirement]:
    """Return all requirements by id."""
    return {test.declared.id: test.declared for test in list_of_suites().tests}


@functools.cache
def requirements_of(name: str) -> tuple[Requirement, ...]:
    """Return a requirement as each of its tests declares it, the one with the fewest needs first. () for another name.

    A case has what it needs, and an engine without chats, say, can replay a case of token ids.
    """
    tests = (test.declared for test in list_of_suites().tests if test.declared.id == name)
    return tuple(sorted(tests, key=lambda one: len(one.needs)))
