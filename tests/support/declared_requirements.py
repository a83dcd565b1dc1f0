"""All requirements as the suites declare them, without a run of pytest."""

from __future__ import annotations

import functools
import importlib
import pkgutil

import msgspec

from coldproof import suites
from coldproof.harness.judgement.requirement import Requirement


class Declared(msgspec.Struct, frozen=True):
    """A test of a requirement: the name of its suite's module, its own name, and the requirement."""

    suite: str
    test: str
    requirement: Requirement


@functools.cache
def declared_tests() -> tuple[Declared, ...]:
    """Return every test of the suites, sorted by suite, with its requirement."""
    modules = {found.name: importlib.import_module(f"{suites.__name__}.{found.name}") for found in walk()}
    return tuple(
        Declared(suite, name, mark.args[0])
        for suite, module in modules.items()
        for name, function in vars(module).items()
        for mark in getattr(function, "pytestmark", ())
        if mark.name == "requirement"
    )


def walk() -> list[pkgutil.ModuleInfo]:
    """Return the modules of the suites, sorted by name."""
    return sorted(pkgutil.iter_modules(suites.__path__), key=lambda found: found.name)


def declared_requirements() -> dict[str, Requirement]:
    """Return the requirements by id."""
    return {one.requirement.id: one.requirement for one in declared_tests()}
