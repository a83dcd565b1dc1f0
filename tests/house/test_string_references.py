"""Nothing refers by a string to what it must not import: engines name no requirement, the harness names no cell.

Cells and requirements meet in traits (docs/architecture.md). An id of a requirement below `adapters/`, or the name of a
cell below `harness/`, would be an import up the table that no import shows.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

import pytest
from support.declared_requirements import declared_requirements
from support.paths import ROOT

from coldproof.adapters.registry import OWN_CELLS

AREAS = "|".join(sorted({name.split("-")[0] for name in declared_requirements()}))
REQUIREMENT = re.compile(rf"({AREAS})(-[0-9]+)?")
# Words that are also an area of requirements, or the name of a cell, and mean something else where they stand.
OTHER_MEANINGS = {
    ("adapters/common/tiny_model.py", "LORA"),  # a type of PEFT, as is the next one
    ("adapters/spec/script/torch_files.py", "LORA"),
    ("harness/case/reproducer/steps.py", "priority"),  # a field of requests
    ("harness/cli/connector.py", "connector"),  # an argument
    ("harness/cli/main.py", "connector"),  # a command
    ("harness/execution/models/gguf_conversion.py", "default"),  # a tokenizer of llama.cpp
    ("harness/execution/models/gguf_conversion.py", "transformers"),  # a module
    ("harness/feature_files.py", "states"),  # files of features
    ("harness/features/events/checks.py", "events"),  # a check
    ("harness/features/events/script.py", "events"),  # a method of an engine
    ("harness/features/images/circumstances.py", "images"),  # a circumstance
    ("harness/judgement/reach/model.py", "priority"),  # a state, as is the next one
    ("harness/judgement/reach/scheduling.py", "priority"),
    ("harness/judgement/reach/states.py", "states"),  # a file of a feature
    ("harness/proof/minimise/reduce.py", "priority"),  # a field of requests
    ("harness/release/bundle/check_events.py", "states"),  # an event, as is the next one
    ("harness/option_table.py", "default"),  # a word of a help text
    ("harness/features/crossed/__init__.py", "images"),  # a feature
    ("harness/option_words.py", "default"),  # a value of --allow-not-exercised
    ("harness/session/conductor.py", "states"),
}


def strings(source: str) -> Iterator[str]:
    """Yield what the strings of a file list, separated by commas, but not the requirements that a fault is about."""
    tree = ast.parse(source)
    faults = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "fault"]
    about = {one for node in faults for one in node.args}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in about:
            yield from node.value.split(",")


def is_requirement(text: str) -> bool:
    """Return whether a text is the id of a requirement, or an area of them."""
    return REQUIREMENT.fullmatch(text) is not None


def is_cell(text: str) -> bool:
    """Return whether a text is the name of a cell."""
    return text in OWN_CELLS


def named_below(room: str, is_name: Callable[[str], bool]) -> set[tuple[str, str]]:
    """Return each file below a folder with each name in its strings."""
    return {
        (path.relative_to(ROOT).as_posix(), text)
        for path in sorted((ROOT / room).rglob("*.py"))
        for text in strings(path.read_text(encoding="utf-8"))
        if is_name(text)
    }


def test_no_engine_names_a_requirement() -> None:
    """A new requirement needs no edit below `adapters/`, except for faults that are about it."""
    assert named_below("adapters", is_requirement) - OTHER_MEANINGS == set()


def test_the_harness_names_no_cell() -> None:
    """It asks an engine for the cells of a profile, and cells for their traits."""
    assert named_below("harness", is_cell) - OTHER_MEANINGS == set()


def test_each_other_meaning_is_still_there() -> None:
    """An exception that nothing needs would hide the next reference."""
    assert named_below("adapters", is_requirement) | named_below("harness", is_cell) >= OTHER_MEANINGS


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('AREAS = ("GROUND", "LORA-4")', ["GROUND", "LORA-4"]),
        ('words = ["--requirements", "TIER-1,CTRL-3"]', ["TIER-1", "CTRL-3"]),
        ('def covers(name):\n    return name.startswith("PRESS")', ["PRESS"]),
        ('@fault("REUSE-1", "LORA-4", stands_for="TIER")\ndef it(patch): ...', ["TIER"]),
        ('Cell(name="it", traits=("images", CellTrait.HITS))', []),
        ('stands_for = "vllm#1, see GROUND-1 and REUSES"', []),
    ],
)
def test_a_requirement_in_a_string_is_detected(source: str, found: list[str]) -> None:
    """Only the first arguments of a fault may name it."""
    assert [text for text in strings(source) if is_requirement(text)] == found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('CI = Profile(cells=("default", "groups-five"))', ["default", "groups-five"]),
        ('CELLS["tight"]', ["tight"]),
        ('words = f"--cells={first},tier-files"', ["tier-files"]),
        ('about = "a tight pool by default"', []),
    ],
)
def test_a_cell_in_a_string_is_detected(source: str, found: list[str]) -> None:
    """This includes names that are joined by commas."""
    assert [text for text in strings(source) if is_cell(text)] == found
