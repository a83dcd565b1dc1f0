"""The tools of repairs change a function of an engine in place, and refuse code that they were not written for."""

from __future__ import annotations

import sys
import traceback
import types
from pathlib import Path
from typing import Any

import pytest

from coldproof.adapters.protocol.own_code import HEAD, own_failure
from coldproof.adapters.spec.repair import RepairError, edit, loaded, part, plant, read_repair, wrap

ENGINE = '''
"""A module of an engine."""

import functools

def traced(function):
    """Decorate a function."""
    @functools.wraps(function)
    def call(*args, **kwargs):
        return ("traced", function(*args, **kwargs))
    return call

class Base:
    def size(self):
        return 1

class Pool(Base):
    LIMIT = 5

    def size(self, count=LIMIT, *, more=2):
        return super().size() + count + more

    @classmethod
    def made(cls, number):
        return (cls.__name__, number)

    @staticmethod
    def twice(number):
        return number * 2

    @traced
    def busy(self):
        return self.size() > 7

    def broken(self):
        raise ValueError("no")

def helper(number):
    return number + 1
'''

REPAIR = '''
"""Count one more.

The engine forgets one.
"""

from coldproof.adapters.spec.repair import edit, part

RELEASES = "==1.*"
ALSO = ("toy/other",)


def install() -> None:
    """Plant the repair."""
    edit(part("toy_engine"), "helper", ("number + 1", "number + 2"))
'''


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the module of an engine whose source is in a file."""
    file = tmp_path / "toy_engine.py"
    file.write_text(ENGINE)
    module: Any = types.ModuleType("toy_engine")
    module.__file__ = str(file)
    exec(compile(ENGINE, str(file), "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, "toy_engine", module)
    return module


@pytest.fixture
def repair(tmp_path: Path) -> Path:
    """Return the file of a repair of that engine."""
    path = tmp_path / "findings" / "toy" / "one-too-few" / "repair.py"
    path.parent.mkdir(parents=True)
    path.write_text(REPAIR)
    return path


def test_an_edited_method_keeps_its_defaults_and_its_class(engine: Any) -> None:
    """This includes `super()`, keyword-only options, and a second edit of what the first one wrote."""
    edit(engine.Pool, "size", ("+ more", "+ more + 10"))
    assert engine.Pool().size() == 18
    edit(engine.Pool, "size", ("more + 10", "more + 20"))
    assert engine.Pool().size(1, more=1) == 23


def test_who_imported_a_function_by_its_name_gets_the_edited_one(engine: Any) -> None:
    """The function stays the same object."""
    imported = engine.helper
    edit(engine, "helper", ("number + 1", "number + 2"))
    assert imported(1) == 3


def test_decorators_stay_and_are_not_called_again(engine: Any) -> None:
    """The function inside them is edited."""
    edit(engine.Pool, "busy", ("> 7", "> 8"))
    assert engine.Pool().busy() == ("traced", False)


@pytest.mark.parametrize(("name", "quote", "expected"), [("made", "(cls.", ("Pool", 3)), ("twice", "* 2", 5)])
def test_class_methods_and_static_methods_are_wrapped_as_what_they_are(
    engine: Any, name: str, quote: str, expected: object
) -> None:
    """The replacement is given the original and its arguments."""

    @wrap(engine.Pool, name, quote)
    def _(original: Any, *arguments: Any) -> Any:
        result = original(*arguments)
        return result + 1 if isinstance(result, int) else result

    assert getattr(engine.Pool, name)(3 if name == "made" else 2) == expected


def test_a_function_is_wrapped_twice_and_then_edited(engine: Any) -> None:
    """A quote is looked for in the function as the engine ships it."""
    for _ in range(2):

        @wrap(engine, "helper", "number + 1")
        def _(original: Any, number: int) -> Any:
            return original(number) * 10

    edit(engine, "helper", ("number + 1", "number + 2"))
    assert engine.helper(1) == 300
    wrap(engine, "helper", "number + 1")(lambda original, number: original(number) + 1)
    assert engine.helper(1) == 301


def test_what_an_edited_function_raises_has_the_line_of_the_engine(engine: Any) -> None:
    """It counts as an error of the engine."""
    edit(engine.Pool, "broken", ('"no"', '"never"'))
    with pytest.raises(ValueError, match="never") as raised:
        engine.Pool().broken()
    last = raised.traceback[-1]
    assert str(last.path) == engine.__file__
    assert ENGINE.splitlines()[last.lineno].strip() == 'raise ValueError("no")'


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda e: edit(e, "helper", ("number - 1", "")), "toy_engine.helper has 0 times, not once: number - 1"),
        (lambda e: edit(e, "helper", ("number", "")), "toy_engine.helper has 2 times, not once: number"),
        (lambda e: edit(e, "gone", ("number", "")), "toy_engine has no function gone"),
        (lambda e: edit(e.Pool, "LIMIT", ("5", "6")), "Pool has no function LIMIT"),
        (lambda e: wrap(e.Pool, "busy", "> 9"), "Pool.busy has 0 times, not once: > 9"),
        (lambda _: part("toy_engine", "Absent"), "module 'toy_engine' has no attribute 'Absent'"),
        (lambda _: part("toy_engine_of_others"), "No module named 'toy_engine_of_others'"),
    ],
)
def test_code_that_a_repair_was_not_written_for_is_refused(engine: Any, change: Any, said: str) -> None:
    """The message says in one line what is not there, and nothing is changed."""
    with pytest.raises(RepairError) as refused:
        change(engine)
    assert str(refused.value) == said
    assert engine.helper(1) == 2


def test_an_edit_that_loses_a_name_from_around_it_is_refused(engine: Any) -> None:
    """Python could not run it in the place of the original."""
    with pytest.raises(RepairError, match="takes other names"):
        edit(engine.Pool, "size", ("super().size()", "1"))
    assert engine.Pool().size() == 8


def test_a_repair_is_read_and_planted_once(engine: Any, repair: Path) -> None:
    """Its name is that of its finding."""
    read = read_repair(repair)
    assert (read.name, read.title, read.mends) == (
        "toy/one-too-few",
        "Count one more.",
        ("toy/one-too-few", "toy/other"),
    )
    assert read.is_for("1.4")
    assert not read.is_for("2.0")
    plant([repair, repair])
    plant([repair])
    assert engine.helper(1) == 3


def test_what_a_repair_itself_raises_is_not_the_engines(engine: Any, repair: Path) -> None:
    """The engine called it, and its file is one of Coldproof's."""
    wrapping = 'wrap(part("toy_engine"), "helper", "number + 1")(lambda original, number: [][number])'
    repair.write_text(REPAIR.replace('edit(part("toy_engine"), "helper", ("number + 1", "number + 2"))', wrapping))
    repair.write_text(repair.read_text().replace("import edit, part", "import part, wrap"))
    loaded(repair).install()
    with pytest.raises(IndexError) as raised:
        engine.helper(1)
    caller = f'{HEAD}:\n  File "{engine.__file__}", line 1, in step\n'
    frames = traceback.format_tb(raised.tb)[1:]  # without that of this test
    assert own_failure(caller + "".join(frames)) == "findings/toy/one-too-few/repair.py:15, in <lambda>"


def test_a_refusal_names_the_repair(engine: Any, repair: Path) -> None:
    """It stops the start of the engine."""
    repair.write_text(REPAIR.replace('"helper"', '"helped"'))
    with pytest.raises(RepairError, match="the repair one-too-few is not for this engine: toy_engine has no function"):
        plant([repair])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("RELEASES = '==1'\n", "no attribute 'install'"),
        ("RELEASES = 1\ndef install(): pass\n", "Expected `str`, got `int`"),
        ("install = 1\n", "`install` is not a function"),
        ("import absent_module_of_nobody\n", "No module named"),
    ],
)
def test_a_file_without_a_repair_is_refused(repair: Path, text: str, said: str) -> None:
    """The message names the file."""
    repair.write_text(text)
    with pytest.raises(RepairError, match=said) as refused:
        read_repair(repair)
    assert str(repair) in str(refused.value)
