"""Imports the suites, to list their requirements without a run."""

from __future__ import annotations

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
