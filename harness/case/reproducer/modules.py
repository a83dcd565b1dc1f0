"""The definitions and imports of one module of ours, as text, for scripts that are joined from several."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

import msgspec

from coldproof.harness.case.reproducer.literals import WIDTH

OWN = "coldproof."
TRIES = 10  # of one text
Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef | ast.Assign | ast.AnnAssign


class Conflict(Exception):
    """Two definitions of one name, or a name that no module defines. The message names it."""


class Module(msgspec.Struct, frozen=True):
    """A module's text with its definitions, and what its imports bind: a statement, or a name of one of our modules."""

    name: str
    lines: list[str]
    definitions: dict[str, Definition]
    imported: dict[str, str]
    own: dict[str, str]


@functools.cache
def source(name: str) -> str:
    """Return the source of a module, which is not imported. Raises Conflict."""
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        raise Conflict(f"there is no module {name}")
    return Path(found.origin).read_text()


def syntax_tree(text: str) -> ast.Module:
    """Return the syntax tree of a text.

    CPython 3.11 counts the depth of trees for all threads together, so that another thread that parses at the same
    time, as an engine's may, makes it raise SystemError: https://github.com/python/cpython/issues/106905.
    """
    for _ in range(TRIES - 1):
        with contextlib.suppress(SystemError):
            return ast.parse(text)
    return ast.parse(text)


def parsed(name: str, text: str) -> Module:
    """Return a module's definitions and imports by the names that they bind."""
    definitions: dict[str, Definition] = {}
    imported: dict[str, str] = {}
    own: dict[str, str] = {}
    for node in syntax_tree(text).body:
        match node:
            case ast.ImportFrom(module=str(origin), names=names) if origin.startswith(OWN):
                own |= dict.fromkeys((one.name for one in names), origin)
            case ast.ImportFrom(module=origin, names=names):
                imported |= {one.asname or one.name: f"from {origin} import {aliased(one)}" for one in names}
            case ast.Import(names=names):
                imported |= {(one.asname or one.name).split(".")[0]: f"import {aliased(one)}" for one in names}
            case ast.FunctionDef(name=bound) | ast.AsyncFunctionDef(name=bound) | ast.ClassDef(name=bound):
                definitions[bound] = node
            case ast.Assign(targets=targets):
                bound_names = [one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)]
                definitions |= dict.fromkeys(bound_names, node)
            case ast.AnnAssign(target=ast.Name(id=bound)):
                definitions[bound] = node
            case _:
                pass
    return Module(name, text.splitlines(), definitions, imported, own)


def aliased(one: ast.alias) -> str:
    """Return a name of an import with its alias."""
    return one.name if one.asname is None else f"{one.name} as {one.asname}"


def first_line(node: ast.stmt) -> int:
    """Return the first line of a statement, decorators included."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(one.lineno for one in decorators)])


def annotated(node: ast.AST) -> Iterator[ast.AST]:
    """Yield everything in the annotations of a function or a variable."""
    match node:
        case ast.FunctionDef(returns=returns) | ast.AsyncFunctionDef(returns=returns):
            found = [returns, *(one.annotation for one in parameters(node))]
        case ast.AnnAssign(annotation=annotation):
            found = [annotation]
        case _:
            found = []
    for one in found:
        if one is not None:
            yield from ast.walk(one)


def parameters(node: Function) -> list[ast.arg]:
    """Return the parameters of a function."""
    whole = node.args
    found = (*whole.posonlyargs, *whole.args, *whole.kwonlyargs, whole.vararg, whole.kwarg)
    return [one for one in found if one is not None]


def is_class(node: ast.AST | None) -> TypeGuard[ast.ClassDef]:
    """Return whether a node defines a class."""
    return isinstance(node, ast.ClassDef)


def is_method(node: ast.AST) -> TypeGuard[Function]:
    """Return whether a node defines a function."""
    return isinstance(node, Function)


def docstring_of(node: ast.AST) -> ast.Constant | None:
    """Return the docstring of a function or class."""
    if not isinstance(node, Function | ast.ClassDef) or not node.body:
        return None
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        return first.value
    return None


def one_line(line: str) -> str:
    """Return the first line of a docstring, closed."""
    return line if line.rstrip().endswith('"""') and line.count('"""') == 2 else f'{line.rstrip()}"""'


def together(imports: set[str]) -> list[str]:
    """Return import statements in order: one for all modules, and one for the names of each module."""
    plain = sorted(line.removeprefix("import ") for line in imports if line.startswith("import "))
    modules = ", ".join(name for name in plain if name not in ("msgspec", "sys"))
    names: dict[str, list[str]] = {}
    for line in sorted(imports):
        if line.startswith("from "):
            _, module, _, name = line.split(" ", 3)
            names.setdefault(module, []).append(name)
    return [
        *(f"import {line.rstrip(',')}" for line in textwrap.wrap(modules, WIDTH - len("import "))),
        *(f"from {module} import {', '.join(names[module])}" for module in sorted(names)),
    ]


@functools.cache
def offers(client: str, name: str) -> bool:
    """Return whether a class of ours, `module:name`, or one above it has a method, or an attribute that it sets itself.

    Raises Conflict for a class that is not there.
    """
    place, kind = client.split(":")
    module = parsed(place, source(place))
    if kind in module.own:
        return offers(f"{module.own[kind]}:{kind}", name)
    node = module.definitions.get(kind)
    if not is_class(node):
        raise Conflict(f"{place} defines no class {kind}")
    above = [one.id for one in node.bases if isinstance(one, ast.Name)]
    ours = [base for base in above if base in module.own or is_class(module.definitions.get(base))]
    return any(sets(one, name) for one in ast.walk(node)) or any(offers(f"{place}:{base}", name) for base in ours)


def sets(node: ast.AST, name: str) -> bool:
    """Return whether a node defines a method of this name, or sets such an attribute of `self`."""
    match node:
        case ast.FunctionDef(name=found) | ast.AsyncFunctionDef(name=found):
            return found == name
        case ast.Attribute(value=ast.Name(id="self"), attr=found, ctx=ast.Store()):
            return found == name
        case _:
            return False
