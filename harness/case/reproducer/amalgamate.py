"""Joins the definitions that a script uses, from several modules, into one source without imports of Coldproof.

The modules are ordinary ones, which mypy reads and tests run. A definition enters with the first line of its
docstring, unless it is short, and a class with the methods whose names are used. A case decides what else is left out:
`if NAME:` is resolved where NAME is one of the flags, and a constant can be replaced by a literal.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeGuard

import msgspec

OWN = "coldproof."
GIVEN = "coldproof.adapters.spec.script.given"  # what a case replaces by literals
FUTURE = "from __future__ import annotations"
WRITTEN_BY_USE = ("__init__", "__enter__", "__exit__")  # methods that are called without their names
STANDARD_BASES = ("Exception", "Generic", "Protocol", "NamedTuple", "object")
EXPLAINED = 3  # a function with no more statements, docstring included, needs no docstring in a script
Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef | ast.Assign | ast.AnnAssign
# Plain classes stand for msgspec's in a script, which needs no package of ours.
AS_DATACLASSES = (
    ("(msgspec.Struct, frozen=True, omit_defaults=True)", ""),
    ("(msgspec.Struct, frozen=True)", ""),
    ("(msgspec.Struct, ", "("),
    (" | msgspec.UnsetType", " | None"),
    ("msgspec.UNSET", "None"),
)


class Conflict(Exception):
    """Two definitions of one name, or a name that no module defines. The message names it."""


class Module(msgspec.Struct, frozen=True):
    """A module's text with its definitions, and what its imports bind: a statement, or a name of one of our modules."""

    name: str
    lines: list[str]
    definitions: dict[str, Definition]
    imported: dict[str, str]
    own: dict[str, str]


class Amalgam:
    """The definitions that are used so far. `flags`: the resolved conditions. `literals`: constants by name."""

    def __init__(self, flags: Mapping[str, bool], literals: Mapping[str, str]) -> None:
        self.flags, self.literals = dict(flags) | {"TYPE_CHECKING": False}, literals
        self.modules: dict[str, Module] = {}  # in the order in which they are complete: dependencies first
        self.used: dict[str, str] = {}  # the module of each definition
        self.taken: set[int] = set()
        self.given: set[str] = set()  # the constants that are literals
        self.imports: set[str] = set()
        self.attributes: set[str] = set()
        self.whole: set[str] = set()  # the classes with all methods: others call them
        self.waiting: list[tuple[Module, Function]] = []  # methods whose names have not been used yet

    def add(self, text: str, call: str) -> str:
        """Take in the text of the script's own part and the call that runs it. Return the text without its imports."""
        module = parsed("script", text)
        self.modules["script"] = module
        self.imports.add("import sys")
        nodes = ast.parse(text).body
        for node in (*nodes, *ast.parse(call).body):
            if not isinstance(node, ast.Import | ast.ImportFrom):
                self.follow(module, node)
        while found := next((one for one in self.waiting if one[1].name in self.attributes), None):
            self.waiting.remove(found)
            self.follow(*found)
        own = [node for node in nodes if not isinstance(node, ast.Import | ast.ImportFrom)]
        return "\n\n".join("\n".join(module.lines[one.lineno - 1 : one.end_lineno]) for one in own)

    def follow(self, module: Module, node: ast.AST) -> None:
        """Take in what a piece of code uses."""
        annotations = {id(one) for part in ast.walk(node) for one in annotated(part)}
        for one in ast.walk(node):
            if isinstance(one, ast.Attribute):
                of_module = isinstance(one.value, ast.Name) and one.value.id in module.imported
                self.attributes |= set() if of_module else {one.attr}
            elif isinstance(one, ast.Name):
                self.use(module, one.id, annotation=id(one) in annotations)

    def use(self, module: Module, name: str, *, annotation: bool = False) -> None:
        """Take in a definition or an import of a module. Other names are builtins or local.

        An annotation is never evaluated: it brings in imports, but no definition.
        """
        if annotation and name not in module.imported:
            return
        if name in self.literals and module.own.get(name) == GIVEN:
            self.given.add(name)
        elif name in module.own:
            self.define(self.module(module.own[name]), name)
        elif name in module.imported:
            self.imports.add(module.imported[name])
        elif name in module.definitions and module.name != "script":
            self.define(module, name)

    def define(self, module: Module, name: str) -> None:
        """Take in a definition of a module. Raises Conflict."""
        if name in module.own:  # it is only passed on from there
            self.define(self.module(module.own[name]), name)
            return
        if name not in module.definitions:
            raise Conflict(f"{module.name} does not define {name}")
        if self.used.setdefault(name, module.name) != module.name:
            raise Conflict(f"{name} is defined in {self.used[name]} and in {module.name}")
        node = module.definitions[name]
        if id(node) in self.taken:
            return
        self.taken.add(id(node))
        if not is_class(node):
            self.follow(module, node)
            return
        methods = [one for one in node.body if is_method(one)]
        for part in (*node.bases, *node.decorator_list, *(one for one in node.body if not is_method(one))):
            self.follow(module, part)
        if any(self.is_foreign(module, base) for base in node.bases):
            self.whole.add(name)
        for method in methods:
            if name in self.whole or method.name in WRITTEN_BY_USE:
                self.follow(module, method)
            else:
                self.waiting.append((module, method))

    def is_foreign(self, module: Module, base: ast.expr) -> bool:
        """Return whether a base class is of a package, so that its users may call any method."""
        if not isinstance(base, ast.Name) or base.id in STANDARD_BASES:
            return False
        if base.id in module.own or is_class(module.definitions.get(base.id)):
            return base.id in self.whole
        return True

    def module(self, name: str) -> Module:
        """Return a module of ours, read once for each script."""
        if name not in self.modules:
            self.modules[name] = parsed(name, resolved(source(name), self.flags))
        return self.modules[name]

    def definitions(self, *, constants: bool) -> Iterator[str]:
        """Yield the text of each constant, or of each other definition. A module comes behind those that it uses."""
        for module in self.ordered():
            used = {id(node): node for name, node in module.definitions.items() if self.used.get(name) == module.name}
            for node in used.values():
                if self.is_plain(module, node) is constants:
                    yield self.text(module, node)

    def is_plain(self, module: Module, node: Definition) -> bool:
        """Return whether a definition is a constant that needs no function or class of ours."""
        used = (module.definitions.get(one.id) for one in ast.walk(node) if isinstance(one, ast.Name))
        behind = any(isinstance(one, Function | ast.ClassDef) for one in used)
        imported = any(isinstance(one, ast.Call) for one in ast.walk(node)) and self.calls_own(module, node)
        return isinstance(node, ast.Assign | ast.AnnAssign) and not behind and not imported

    def calls_own(self, module: Module, node: Definition) -> bool:
        """Return whether a definition calls something of another module of ours."""
        calls = [one.func for one in ast.walk(node) if isinstance(one, ast.Call)]
        return any(isinstance(one, ast.Name) and one.id in module.own for one in calls)

    def ordered(self) -> list[Module]:
        """Return the modules, each one behind those that it imports from."""
        done: dict[str, Module] = {}

        def visit(name: str) -> None:
            if name in done or name not in self.modules:
                return
            for other in dict.fromkeys(self.modules[name].own.values()):
                visit(other)
            done[name] = self.modules[name]

        for name in list(self.modules):
            visit(name)
        return [module for name, module in done.items() if name != "script"]

    def text(self, module: Module, node: Definition) -> str:
        """Return a definition's text, without unused methods and with docstrings of one line."""
        left = set(range(first_line(node), (node.end_lineno or 0) + 1))
        if is_class(node) and node.name not in self.whole:
            for unused in (one for one in node.body if is_method(one) and one.name not in self.kept_methods()):
                left -= set(range(first_line(unused) - 1, (unused.end_lineno or 0) + 1))
        lines = dict(enumerate(module.lines, 1))
        for one in ast.walk(node):
            if (docstring := docstring_of(one)) is not None:
                dropped = is_method(one) and 1 < len(one.body) <= EXPLAINED
                left -= set(range(docstring.lineno + (not dropped), (docstring.end_lineno or 0) + 1))
                lines[docstring.lineno] = one_line(lines[docstring.lineno])
        text = "\n".join(lines[number] for number in sorted(left) if lines[number].strip())
        if "(msgspec.Struct" in text:
            text = f"@dataclass(frozen=True)\n{text}" if "frozen=True" in text else f"@dataclass\n{text}"
        for ours, plain in AS_DATACLASSES:
            text = text.replace(ours, plain)
        if "@dataclass" in text:
            self.imports.add("from dataclasses import dataclass")
        return text

    def kept_methods(self) -> set[str]:
        """Return the names of the methods that stay."""
        return {*WRITTEN_BY_USE, *self.attributes}


def amalgamate(
    heading: str, script: str, *, flags: Mapping[str, bool], literals: Mapping[str, str], call: str = "main()"
) -> str:
    """Return a script. `heading`: its docstring. `script`: its own part, with imports of ours. `call`: what runs it.

    Raises Conflict.
    """
    amalgam = Amalgam(flags, literals)
    own = amalgam.add(script, call)
    definitions = list(amalgam.definitions(constants=False))
    constants = [f"{name} = {literals[name]}" for name in literals if name in amalgam.given]
    constants += amalgam.definitions(constants=True)
    head = [heading, FUTURE, "\n".join(together(amalgam.imports - {FUTURE})), "\n".join(constants)]
    parts = [*head, own, *definitions, f'if __name__ == "__main__":\n    sys.exit({call})\n']
    return "\n\n".join(part for part in parts if part)


def together(imports: set[str]) -> list[str]:
    """Return import statements in order, one for each module."""
    plain = sorted(line for line in imports if line.startswith("import ") and "msgspec" not in line)
    names: dict[str, list[str]] = {}
    for line in sorted(imports):
        if line.startswith("from "):
            _, module, _, name = line.split(" ", 3)
            names.setdefault(module, []).append(name)
    return [*plain, *(f"from {module} import {', '.join(names[module])}" for module in sorted(names))]


@functools.cache
def source(name: str) -> str:
    """Return the source of a module, which is not imported. Raises Conflict."""
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        raise Conflict(f"there is no module {name}")
    return Path(found.origin).read_text()


def parsed(name: str, text: str) -> Module:
    """Return a module's definitions and imports by the names that they bind."""
    definitions: dict[str, Definition] = {}
    imported: dict[str, str] = {}
    own: dict[str, str] = {}
    for node in ast.parse(text).body:
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


def resolved(text: str, flags: Mapping[str, bool]) -> str:
    """Return a text in which each `if` statement on a flag is what it runs, or asks only for the rest."""
    while (found := next(conditions(ast.parse(text), flags), None)) is not None:
        node, taken = found
        lines = text.splitlines()
        kept: list[str] = []
        if isinstance(taken, str):
            lines[node.lineno - 1] = lines[node.lineno - 1].replace(taken, "", 1)
            text = "\n".join(lines) + "\n"
            continue
        if taken:
            first, last = first_line(taken[0]), taken[-1].end_lineno or 0
            shift = taken[0].col_offset - node.col_offset
            kept = [line[shift:] if line[:shift].isspace() else line for line in lines[first - 1 : last]]
        elif only_statement(ast.parse(text), node):
            kept = [" " * node.col_offset + "pass"]
        lines[node.lineno - 1 : node.end_lineno] = kept
        text = "\n".join(lines) + "\n"
    return text


def conditions(tree: ast.AST, flags: Mapping[str, bool]) -> Iterator[tuple[ast.If, list[ast.stmt] | str]]:
    """Yield each `if` statement on a flag, on `not` one, or on one and more, with the statements that it runs, or with
    the words that are left out.
    """
    for node in ast.walk(tree):
        match node:
            case ast.If(test=ast.Name(id=name)) if name in flags:
                yield node, node.body if flags[name] else node.orelse
            case ast.If(test=ast.UnaryOp(op=ast.Not(), operand=ast.Name(id=name))) if name in flags:
                yield node, node.orelse if flags[name] else node.body
            case ast.If(test=ast.BoolOp(op=ast.And(), values=[ast.Name(id=name), *_])) if name in flags:
                yield node, f"{name} and " if flags[name] else node.orelse
            case _:
                pass


def only_statement(tree: ast.AST, node: ast.If) -> bool:
    """Return whether nothing but a docstring stands beside a statement in its block."""
    for one in ast.walk(tree):
        for block in (getattr(one, "body", None), getattr(one, "orelse", None)):
            if isinstance(block, list) and any(statement.lineno == node.lineno for statement in block):
                return len(block) == 1
    return False


def first_line(node: ast.stmt) -> int:
    """Return the first line of a statement, decorators included."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(one.lineno for one in decorators)])


def annotated(node: ast.AST) -> Iterator[ast.AST]:
    """Yield everything in the annotations of a function or a variable."""
    match node:
        case ast.FunctionDef(returns=returns, args=arguments) | ast.AsyncFunctionDef(returns=returns, args=arguments):
            whole = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg)
            found = [returns, *(one.annotation for one in whole if one is not None)]
        case ast.AnnAssign(annotation=annotation):
            found = [annotation]
        case _:
            found = []
    for one in found:
        if one is not None:
            yield from ast.walk(one)


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
