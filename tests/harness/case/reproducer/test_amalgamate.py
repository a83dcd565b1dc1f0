"""A script has the definitions that it uses and no others, in an order in which it runs."""

from __future__ import annotations

import ast
import contextlib
import sys
from pathlib import Path

import pytest

from coldproof.harness.case.reproducer.amalgamate import amalgamate
from coldproof.harness.case.reproducer.conditions import resolved
from coldproof.harness.case.reproducer.modules import Conflict, source, syntax_tree

FIRST = '''"""The first module."""

import json
from typing import Any

from coldproof_parts.second import LIMIT, Base, helper
from coldproof.adapters.spec.script.given import ATTEMPTS, SALTS

UNUSED = 1
TABLE = {"a": LIMIT}  # a reason


class Thing(Base):
    """A thing.

    With more to say.
    """

    def __init__(self) -> None:
        """Begin."""
        self.values = [TABLE]
        if SALTS:
            self.salt = json.dumps("salt")

    def used(self, given: Any) -> int:
        """Return a number."""
        return helper(given) + ATTEMPTS

    def unused(self) -> None:
        """Do nothing."""
        never()
'''
SECOND = '''"""The second module."""

import json

LIMIT = 3


class Base:
    """A base."""

    def inherited(self) -> int:
        """Return a number."""
        return 1


def helper(given: object) -> int:
    """Return the size of a value as JSON."""
    return len(json.dumps(given)) * LIMIT
'''
SCRIPT = """from coldproof_parts.first import Thing
def main() -> int:
    return Thing().used(None)"""


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a package of two modules, which is amalgamated like a module of Coldproof."""
    folder = tmp_path / "coldproof_parts"
    folder.mkdir()
    for name, text in (("__init__", ""), ("first", FIRST), ("second", SECOND)):
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("coldproof.harness.case.reproducer.modules.OWN", "coldproof")
    monkeypatch.delitem(sys.modules, "coldproof_parts", raising=False)
    source.cache_clear()
    return folder


def made(*, salts: bool = False) -> str:
    """Return the script."""
    return amalgamate('"""A script."""', SCRIPT, flags={"SALTS": salts}, literals={"ATTEMPTS": "7"}, call="main()")


def test_a_script_has_what_it_uses(parts: Path) -> None:
    """The script runs: `null` has four characters, each counts three times, and there are seven attempts."""
    text = made()
    names: dict[str, object] = {"__name__": "script"}
    exec(compile(text, "script.py", "exec"), names)
    main = names["main"]
    assert callable(main)
    assert main() == 4 * 3 + 7
    assert "coldproof" not in text
    assert not {"UNUSED", "SALTS"} & names.keys()
    assert "def unused" not in text
    assert "def inherited" not in text


def test_a_docstring_has_one_line_and_a_flag_decides(parts: Path) -> None:
    """What only the other branch of a flag needs is left out."""
    assert "With more to say" not in made()
    assert '"""A thing."""' in made()
    assert "self.salt" not in made()
    assert 'self.salt = json.dumps("salt")' in made(salts=True)
    ast.parse(made(salts=True))


def test_two_definitions_of_a_name_are_refused(parts: Path) -> None:
    """A script has one namespace, so two modules must not define the same name."""
    (parts / "first.py").write_text(FIRST.replace("from coldproof_parts.second import LIMIT, Base, helper", OTHER))
    source.cache_clear()
    with pytest.raises(Conflict, match="LIMIT is defined in"):
        made()


OTHER = """from coldproof_parts.second import Base, helper

LIMIT = 4
"""


def test_a_name_that_no_module_defines_is_refused(parts: Path) -> None:
    """A name that was renamed or removed in its module is an error."""
    (parts / "second.py").write_text(SECOND.replace("def helper", "def renamed"))
    source.cache_clear()
    with pytest.raises(Conflict, match="does not define helper"):
        made()


@pytest.mark.parametrize(
    ("text", "on", "off"),
    [
        ("if F:\n    a = 1\nb = 2\n", "a = 1\nb = 2\n", "b = 2\n"),
        ("if not F:\n    a = 1\nelse:\n    b = 2\n", "b = 2\n", "a = 1\n"),
        ("if F and x:\n    a = 1\n", "if x:\n    a = 1\n", "pass\n"),
        ("def f():\n    if F:\n        a = 1\n", "def f():\n    a = 1\n", "def f():\n    pass\n"),
    ],
)
def test_conditions_on_flags_are_resolved(text: str, on: str, off: str) -> None:
    """A condition on a flag becomes the branch that runs. A block that would be empty becomes `pass`."""
    assert resolved(text, {"F": True}) == on
    assert resolved(text, {"F": False}) == off


@pytest.mark.parametrize(("failures", "raised"), [(3, False), (100, True)])
def test_another_thread_that_parses_makes_no_script_fail(
    failures: int, monkeypatch: pytest.MonkeyPatch, *, raised: bool
) -> None:
    """CPython 3.11 raises SystemError then: "AST constructor recursion depth mismatch (before=174, after=37)"."""
    left, parse = [SystemError("mismatch")] * failures, ast.parse

    def disturbed(text: str) -> ast.Module:
        if left:
            raise left.pop()
        return parse(text)

    monkeypatch.setattr(ast, "parse", disturbed)
    with pytest.raises(SystemError) if raised else contextlib.nullcontext():
        assert syntax_tree("x = 1").body
