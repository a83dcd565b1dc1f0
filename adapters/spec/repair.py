"""A repair: the smallest change of an engine's Python code that removes one root cause, and the tools to plant it.

A repair refuses code that it was not written for: each tool quotes a piece of the engine's own text, which must stand
there exactly once. What is planted lasts as long as the process.
"""

from __future__ import annotations
import __future__

import ast
import functools
import importlib
import importlib.metadata
import inspect
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import msgspec
from packaging.specifiers import SpecifierSet

ORIGINAL, REPAIRED = "source_as_shipped", "source_as_repaired"  # what a function that was edited remembers
_planted: set[Path] = set()
edited: dict[FunctionType, int] = {}  # in this process, functions whose text was changed, and their first lines
wrapped: list[str] = []  # in this process, functions that were replaced from outside


class RepairError(Exception):
    """A repair does not fit the code that it is planted into. The message is one line."""


class Repair(msgspec.Struct, frozen=True, kw_only=True):
    """A repair of one finding. `name`: the id of the finding. `releases`: those that it was written for.

    `text`: what it changes, and why that is right. `also`: other findings whose cases it removes as well. `needs`:
    distributions beside the engine whose code it changes, or of which the engine must be. `path`: the file with its
    function `install`.
    """

    name: str
    releases: str
    text: str
    also: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    path: Path

    @property
    def title(self) -> str:
        """Return the first line of its text."""
        return self.text.partition("\n")[0]

    @property
    def mends(self) -> tuple[str, ...]:
        """Return the ids of all findings whose cases it removes."""
        return (self.name, *self.also)

    def is_for(self, release: str) -> bool:
        """Return whether it was written for this release of its engine."""
        return SpecifierSet(self.releases, prereleases=True).contains(release)

    @property
    def absent(self) -> tuple[str, ...]:
        """Return which of the distributions that it needs are not installed."""
        return tuple(name for name in self.needs if not installed(name))


def installed(distribution: str) -> bool:
    """Return whether a distribution is installed."""
    try:
        return bool(importlib.metadata.version(distribution))
    except importlib.metadata.PackageNotFoundError:
        return False


def loaded(path: Path) -> ModuleType:
    """Return the module in a repair's file. Nothing is written beside it. Raises RepairError for a faulty file."""
    module = ModuleType(f"repair of {path.parent.name}")
    module.__file__ = str(path)
    try:
        exec(compile(path.read_bytes(), path, "exec", dont_inherit=True), module.__dict__)
    except (OSError, SyntaxError, ImportError) as problem:
        raise RepairError(f"cannot import {path}: {problem}") from problem
    return module


def read_repair(path: Path) -> Repair:
    """Return the repair in the file `ENGINE/NAME/repair.py`. Raises RepairError if it does not declare one."""
    module, name = loaded(path), f"{path.parent.parent.name}/{path.parent.name}"
    try:
        if not callable(module.install):
            raise RepairError(f"{path}: `install` is not a function")
        declared = {"releases": module.RELEASES, "text": inspect.cleandoc(module.__doc__ or "").strip()}
        declared |= {"also": getattr(module, "ALSO", ()), "needs": getattr(module, "NEEDS", ())}
        found = {"name": name, "path": path, **declared}
        return msgspec.convert(found, Repair)
    except (AttributeError, msgspec.ValidationError) as problem:
        raise RepairError(f"{path} does not declare a repair: {problem}") from problem


def plant(paths: Iterable[Path]) -> None:
    """Plant the repairs in these files into this process, each once. Raises RepairError that names the repair."""
    for path in paths:
        if path in _planted:
            continue
        try:
            loaded(path).install()
        except RepairError as problem:
            raise RepairError(f"the repair {path.parent.name} is not for this engine: {problem}") from problem
        _planted.add(path)


def part(module: str, name: str = "") -> Any:
    """Return a module of the engine, or a class or function in it. Raises RepairError if it is not there."""
    try:
        found = importlib.import_module(module)
        return getattr(found, name) if name else found
    except (ImportError, AttributeError) as problem:
        raise RepairError(str(problem)) from problem


def wrap(owner: Any, name: str, quote: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that replaces `owner.name` by a function that is given the original first.

    `quote`: text that must stand exactly once in the original. Raises RepairError.
    """
    function = bare_function(owner, name)
    check_quote(owner, name, shipped_source(function), quote)

    def decorate(replacement: Callable[..., Any]) -> Callable[..., Any]:
        held = inspect.getattr_static(owner, name)
        kind = type(held) if isinstance(held, classmethod | staticmethod) else None
        original = held.__func__ if kind is not None else held

        @functools.wraps(original)
        def call(*arguments: Any, **options: Any) -> Any:
            return replacement(original, *arguments, **options)

        setattr(owner, name, call if kind is None else kind(call))
        wrapped.append(f"{owner.__name__}.{name}")
        return replacement

    return decorate


def edit(owner: Any, name: str, *changes: tuple[str, str]) -> None:
    """Replace text in the function `owner.name`: of each pair, the first text, which must stand there exactly once.

    Modules that imported the function by its name get the edited one, too. Raises RepairError.
    """
    function = bare_function(owner, name)
    shipped = shipped_source(function)
    source = getattr(function, REPAIRED, shipped)
    for old, new in changes:
        check_quote(owner, name, source, old)
        source = source.replace(old, new)
    code = compiled(function, source)
    edited.setdefault(function, function.__code__.co_firstlineno)
    setattr(function, ORIGINAL, shipped)
    setattr(function, REPAIRED, source)
    function.__code__ = code


def bare_function(owner: Any, name: str) -> FunctionType:
    """Return the function `owner.name` without its decorators and earlier wrappers. Raises RepairError."""
    held = inspect.getattr_static(owner, name, None)
    function = inspect.unwrap(getattr(held, "__func__", held)) if held is not None else None
    if not isinstance(function, FunctionType):
        raise RepairError(f"{owner.__name__} has no function {name}")
    return function


def shipped_source(function: FunctionType) -> str:
    """Return the source of a function as the engine ships it, without indentation. Raises RepairError."""
    try:
        return getattr(function, ORIGINAL, None) or textwrap.dedent(inspect.getsource(function))
    except OSError as problem:
        raise RepairError(f"{function.__qualname__} has no source: {problem}") from problem


def check_quote(owner: Any, name: str, source: str, quote: str) -> None:
    """Raise RepairError if a text does not stand exactly once in the source of `owner.name`."""
    if (count := source.count(quote)) != 1:
        line = " ".join(quote.split())
        raise RepairError(f"{owner.__name__}.{name} has {count} times, not once: {line}")


def compiled(function: FunctionType, source: str) -> CodeType:
    """Return the code of an edited function. It keeps the names that the original takes from around it.

    Its lines are counted from the place of the original, and its file is the engine's: what it raises is the engine's.
    """
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef)
    definition.decorator_list = []
    words = definition.args  # the function keeps its own defaults
    words.defaults = [ast.Constant(None) for _ in words.defaults]
    words.kw_defaults = [one and ast.Constant(None) for one in words.kw_defaults]
    ast.increment_lineno(definition, function.__code__.co_firstlineno - 1)
    names = function.__code__.co_freevars
    around = ast.parse(f"def around({', '.join(names)}): pass")
    (outer,) = around.body
    assert isinstance(outer, ast.FunctionDef)
    outer.body = [definition, ast.Return(ast.Name(definition.name, ast.Load()))]
    scope: dict[str, Any] = {}
    file, flags = inspect.getfile(function), __future__.annotations.compiler_flag
    module = compile(ast.fix_missing_locations(around), file, "exec", flags=flags, dont_inherit=True)
    exec(module, function.__globals__, scope)
    code: CodeType = scope["around"](*([None] * len(names))).__code__
    if code.co_freevars != names:
        raise RepairError(f"{function.__qualname__} takes other names from around it than before: {code.co_freevars}")
    return code
