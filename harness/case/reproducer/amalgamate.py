"""Joins the definitions that a script uses, from several modules, into one source without imports of Coldproof.

The modules are ordinary ones, which mypy reads and tests run. A definition enters with the first line of its
docstring, unless it is short, and a class with the methods that are used. A case decides what else is left out: `if
NAME:` is resolved where NAME is one of the flags, and a constant can be replaced by a literal.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Mapping

from coldproof.harness.case.reproducer.conditions import resolved
from coldproof.harness.case.reproducer.modules import (
    Conflict,
    Definition,
    Function,
    Module,
    annotated,
    docstring_of,
    first_line,
    is_class,
    is_method,
    one_line,
    parameters,
    parsed,
    source,
    syntax_tree,
    together,
)

GIVEN = "coldproof.adapters.spec.script.given"  # what a case replaces by literals
# Whatever fails, the import of a package included: nothing was shown.
HOOK = """import sys
sys.excepthook = lambda kind, problem, _: sys.exit(print(f"could not test: {kind.__name__}: {problem}") or 2)"""
ENTRY = 'if __name__ == "__main__":\n    sys.exit({})\n'
FUTURE = "from __future__ import annotations"
WRITTEN_BY_USE = "__"  # methods whose names begin so are called without their names
STANDARD_BASES = ("Exception", "Generic", "Protocol", "NamedTuple", "object")
EXPLAINED = 7  # a function with no more statements, docstring included, needs no docstring in a script
SHORT = 16  # characters of a number that stands where it is used, without a name
OPENING = "{[(\"'"  # what a literal that keeps its name begins with
# Plain classes stand for msgspec's in a script, which needs no package of ours.
AS_DATACLASSES = (
    ("(msgspec.Struct, frozen=True, omit_defaults=True)", ""),
    ("(msgspec.Struct, frozen=True)", ""),
    ("(msgspec.Struct, ", "("),
)


def relevant(flags: Mapping[str, bool], text: str) -> frozenset[tuple[str, bool]]:
    """Return the flags whose names all occur in a text: no other one can change it."""
    return frozenset(item for item in flags.items() if all(name in text for name in re.findall(r"[^\W\d]\w*", item[0])))


@functools.lru_cache(maxsize=1024)  # a run has many cases, of which most have the same flags
def resolved_module(name: str, text: str, flags: frozenset[tuple[str, bool]]) -> Module:
    """Return a module of ours with its conditions resolved. Nobody changes it."""
    return parsed(name, resolved(text, dict(flags)))


class Amalgam:
    """The definitions that are used so far. `flags`: the resolved conditions. `literals`: constants by name."""

    def __init__(self, flags: Mapping[str, bool], literals: Mapping[str, str]) -> None:
        self.flags, self.literals = dict(flags) | {"TYPE_CHECKING": False}, literals
        self.modules: dict[str, Module] = {}  # in the order in which they are complete: dependencies first
        self.used: dict[str, str] = {}  # the module of each definition
        self.taken: set[int] = set()  # definitions and methods
        self.given: set[str] = set()  # the constants that are literals
        self.named: set[str] = set()  # of which these keep their names: they are inside of an f-string
        self.imports: set[str] = set()
        self.attributes: set[tuple[str | None, str]] = set()  # what is used of a class; None: of any
        self.bases: dict[str, set[str]] = {}  # of each class
        self.created: dict[tuple[str, str], str] = {}  # the class of an attribute, by the class and name of both
        self.whole: set[str] = set()  # the classes with all methods: others call them
        self.waiting: list[tuple[Module, str, Function]] = []  # methods of classes that have not been used yet

    def add(self, text: str, call: str) -> str:
        """Take in the text of the script's own part and the call that runs it. Return the text without its imports."""
        module = parsed("script", text)
        self.modules["script"] = module
        nodes = syntax_tree(text).body
        for node in (*nodes, *syntax_tree(call).body):
            if not isinstance(node, ast.Import | ast.ImportFrom):
                self.follow(module, node)
        while found := next((one for one in self.waiting if self.is_used(one[1], one[2].name)), None):
            self.waiting.remove(found)
            self.take_method(*found)
        own = [node for node in nodes if not isinstance(node, ast.Import | ast.ImportFrom)]
        return "\n\n".join("\n".join(module.lines[one.lineno - 1 : one.end_lineno]) for one in own)

    def follow(self, module: Module, node: ast.AST, owner: str | None = None) -> None:
        """Take in what a piece of code uses. `owner`: the class of a method."""
        annotations = {id(one) for part in ast.walk(node) for one in annotated(part)}
        for one in ast.walk(node):
            if isinstance(one, ast.Attribute):
                if not (isinstance(one.value, ast.Name) and one.value.id in module.imported):
                    self.attributes.add((self.kind(module, one.value, node, owner), one.attr))
            elif isinstance(one, ast.Name):
                self.use(module, one.id, annotation=id(one) in annotations)
            elif isinstance(one, ast.JoinedStr):
                self.named |= {part.id for part in ast.walk(one) if isinstance(part, ast.Name)}

    def kind(self, module: Module, value: ast.expr, node: ast.AST, owner: str | None) -> str | None:
        """Return the class of a value in a function, where it is plain: of `self`, of a parameter, or of an attribute
        that `__init__` creates. None if the value may be of any class.
        """
        match value:
            case ast.Name(id="self" | "cls"):
                return owner
            case ast.Name(id=name) if is_method(node):
                found = next((one.annotation for one in parameters(node) if one.arg == name), None)
                return found.id if isinstance(found, ast.Name) and self.has_class(module, found.id) else None
            case ast.Attribute(value=ast.Name(id="self"), attr=name) if owner is not None:
                return self.created.get((owner, name))
            case _:
                return None

    def has_class(self, module: Module, name: str) -> bool:
        """Return whether a name in a module is a class of ours, and not just an interface."""
        home = self.module(module.own[name]) if name in module.own else module
        node = home.definitions.get(name)
        return is_class(node) and not any(isinstance(one, ast.Name) and one.id == "Protocol" for one in node.bases)

    def note_created(self, module: Module, node: ast.ClassDef) -> None:
        """Note the classes of the attributes that the methods of a class create."""
        for one in ast.walk(node):
            match one:
                case ast.Assign(
                    targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)],
                    value=ast.Call(func=ast.Name(id=kind)),
                ) if self.has_class(module, kind):
                    self.created[node.name, name] = kind
                case _:
                    pass

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
        self.bases[name] = {base.id for base in node.bases if isinstance(base, ast.Name)}
        self.note_created(module, node)
        for part in (*node.bases, *node.decorator_list, *(one for one in node.body if not is_method(one))):
            self.follow(module, part)
        if any(self.is_foreign(module, base) for base in node.bases):
            self.whole.add(name)
        for method in (one for one in node.body if is_method(one)):
            if name in self.whole or method.name.startswith(WRITTEN_BY_USE):
                self.take_method(module, name, method)
            else:
                self.waiting.append((module, name, method))

    def take_method(self, module: Module, owner: str, method: Function) -> None:
        """Take in a method of a class."""
        self.taken.add(id(method))
        self.follow(module, method, owner)

    def is_used(self, owner: str, name: str) -> bool:
        """Return whether a method of a class is used: of it, of a class above or below it, or of any."""
        related = {owner, *self.above(owner), *(one for one in self.bases if owner in self.above(one))}
        return any((one, name) in self.attributes for one in (None, *related))

    def above(self, name: str) -> set[str]:
        """Return the bases of a class, and theirs."""
        found = self.bases.get(name, set())
        return found | {other for base in found for other in self.above(base)}

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
            text = source(name)
            self.modules[name] = resolved_module(name, text, relevant(self.flags, text))
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
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            return False
        used = (module.definitions.get(one.id) for one in ast.walk(node) if isinstance(one, ast.Name))
        behind = any(isinstance(one, Function | ast.ClassDef) for one in used)
        calls = [one.func for one in ast.walk(node) if isinstance(one, ast.Call)]
        calls_own = any(isinstance(one, ast.Name) and one.id in module.own for one in calls)
        return not behind and not calls_own

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
        if is_class(node):
            for unused in (one for one in node.body if is_method(one) and id(one) not in self.taken):
                left -= set(range(first_line(unused) - 1, (unused.end_lineno or 0) + 1))
        lines = dict(enumerate(module.lines, 1))
        for one in sorted(self.replaced(module, node), key=lambda name: -name.col_offset):
            line = lines[one.lineno].encode()
            before, behind = line[: one.col_offset].decode(), line[one.end_col_offset :].decode()
            lines[one.lineno] = f"{before}{self.literals[one.id]}{behind}"
        for part in ast.walk(node):
            if (docstring := docstring_of(part)) is not None:
                dropped = is_method(part) and 1 < len(part.body) <= EXPLAINED
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

    def replaced(self, module: Module, node: Definition) -> list[ast.Name]:
        """Return the names in a definition that their literals replace."""
        names = [one for one in ast.walk(node) if isinstance(one, ast.Name)]
        return [one for one in names if module.own.get(one.id) == GIVEN and self.is_short(one.id)]

    def is_short(self, name: str) -> bool:
        """Return whether a constant's literal stands where it is used: a short number, True or False."""
        literal = self.literals.get(name, "{")
        return len(literal) <= SHORT and literal[0] not in OPENING and name not in self.named

    def constants(self) -> list[str]:
        """Return the constants as assignments: those of the case, and then those of modules."""
        ours = [f"{name} = {self.literals[name]}" for name in self.literals if name in self.given]
        return [one for one in ours if not self.is_short(one.partition(" ")[0])] + [*self.definitions(constants=True)]


def amalgamate(
    heading: str,
    script: str,
    *,
    flags: Mapping[str, bool],
    literals: Mapping[str, str],
    call: str = "main()",
    parts: Mapping[str, str] | None = None,
) -> str:
    """Return a script. `heading`: its docstring. `script`: its own part, with imports of ours. `call`: what runs it.
    `parts`: classes that the engine looks for in the script, with their modules.

    Raises Conflict.
    """
    amalgam = Amalgam(flags, literals)
    for name, module in (parts or {}).items():
        amalgam.define(amalgam.module(module), name)
    own = amalgam.add(script, call)
    definitions = list(amalgam.definitions(constants=False))
    constants = "\n".join(amalgam.constants())
    head = [heading, FUTURE, HOOK, "\n".join(together(amalgam.imports - {FUTURE})), constants]
    return "\n\n".join([part for part in (*head, own, *definitions) if part] + [ENTRY.format(call)])
