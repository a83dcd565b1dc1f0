"""Each requirement is tested in the right cells and in the right order, and none is left out silently."""

from __future__ import annotations

import json
import re
from itertools import groupby
from pathlib import Path

import msgspec
import pytest
from support.declared_requirements import declared_requirements, declared_tests
from support.suite_runs import run_pytest

from coldproof.adapters.protocol.cell_traits import CellTrait
from coldproof.adapters.registry import ATTACHED, CELLS, ENGINES
from coldproof.adapters.spec.cell import Cell
from coldproof.adapters.vllm.cells.cell import VllmCell, small_pool
from coldproof.harness.options import PROFILES, UsageError
from coldproof.harness.selection.select import cells_for, cells_named, format_cells

KEYED = Cell(name="keyed", about="about keys", traits=(CellTrait.BLOCK_KEYS, CellTrait.WAITING))
SMALL = Cell(name="small", about="about room", traits=(CellTrait.SMALL_POOL, CellTrait.RESETS, CellTrait.ABORTS))
ANY = VllmCell(name="any", about="about all")
REQUIREMENTS = declared_requirements()


def collected(*arguments: str) -> list[tuple[str, str]]:
    """Return the test and the cell of each test that a run would make, in order."""
    plugins = ["-p", "_hypothesis_pytestplugin", "-p", "pytest_timeout"]
    given = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    done = run_pytest(["suites", "--collect-only", "-q", *arguments, *plugins], given)
    assert done.returncode == 0, done.stdout
    return re.findall(r"::(test_\w+)\[([\w-]+)\]", done.stdout)


@pytest.mark.parametrize(
    ("requirement", "cells"),
    [("SALT-1", ["keyed"]), ("PRESS-2", ["small"]), ("CTRL-1", ["keyed", "small"]), ("CTRL-2", ["small"])],
)
def test_a_requirement_is_tested_in_the_cells_that_are_for_it(requirement: str, cells: list[str]) -> None:
    """Its traits decide this, and the order is the chosen one."""
    assert [cell.name for cell in cells_for(REQUIREMENTS[requirement], [KEYED, SMALL])] == cells
    assert [cell.name for cell in cells_for(REQUIREMENTS[requirement], [SMALL, KEYED])] == cells[::-1]


def test_a_requirement_that_no_cell_is_for_runs_in_the_first() -> None:
    """The requirement then reports what it could not exercise."""
    assert cells_for(REQUIREMENTS["GROUND-1"], [SMALL, KEYED]) == [SMALL]
    assert cells_for(REQUIREMENTS["GROUND-1"], []) == []


def test_the_attached_cell_and_one_without_traits_are_for_everything() -> None:
    """No other cell could test the requirements."""
    assert all(cell.suits(requirement.suits) for cell in (ANY, ATTACHED) for requirement in REQUIREMENTS.values())


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_has_cells_for_profiles_that_exist(name: str) -> None:
    """A profile that an engine does not name has all of its cells."""
    assert set(ENGINES[name].profiles) <= set(PROFILES)


@pytest.mark.parametrize("names", [("nope",), ("default", "nope"), ("",), ("list",)])
def test_a_cell_that_does_not_exist_is_named(names: tuple[str, ...]) -> None:
    """Its place in the list does not matter."""
    with pytest.raises(UsageError, match=f"unknown cell '{names[-1]}'"):
        cells_named(names)


def test_the_listing_has_a_line_for_each_cell() -> None:
    """The line has the name and the purpose, in aligned columns."""
    lines = format_cells().splitlines()
    assert [line.split()[0] for line in lines] == list(CELLS)
    assert [line[len(max(CELLS, key=len)) + 2 :] for line in lines] == [cell.about for cell in CELLS.values()]


def test_each_cell_is_known_by_its_name_and_made_of_words() -> None:
    """Flags are passed one by one, and names are used in the report and in file names."""
    wrong = [
        name
        for name, cell in CELLS.items()
        if not (cell.name == name and re.fullmatch(r"[a-z0-9-]+", name) and cell.about and cell.traits)
        or any(not word or re.search(r"\s", word) for word in cell.arguments)
    ]
    assert wrong == []


def test_a_twin_differs_by_its_flags_alone() -> None:
    """It is another cell of the same engine and the same model, and its cell is one that TWIN-1 suits."""
    twins = [(cell, CELLS[cell.twin]) for cell in CELLS.values() if cell.twin]
    assert twins
    for cell, twin in twins:
        assert cell.name != twin.name
        assert (cell.engine, cell.model, cell.lossy) == (twin.engine, twin.model, twin.lossy)
        assert not cell.suits(["persistent tier"]) or not twin.suits(["persistent tier"])
    marked = [cell.name for cell in CELLS.values() if "another implementation" in (cell.traits or ())]
    assert marked == [cell.name for cell, _ in twins]


def test_a_tight_pool_holds_one_request_of_the_longest_kind() -> None:
    """One block is the null block of vLLM, and the longest request can use all others."""
    words = list(small_pool("--more", blocks=9))
    assert words[words.index("--num-gpu-blocks-override") + 1] == "9"
    assert words[words.index("--max-model-len") + 1] == str(8 * 32)
    assert words[-1] == "--more"


def test_how_many_requests_run_at_a_time_is_read_off_the_flags() -> None:
    """The number is unknown if no flag states it."""
    assert ANY.most_requests is None
    assert msgspec.structs.replace(ANY, arguments=("--max-num-seqs", "8", "--x")).most_requests == 8


def test_cells_that_compute_even_short_prompts_in_chunks_say_so() -> None:
    """Several seeded answers crash vLLM 0.32.0 in such cells."""
    assert CELLS["tight"].chunked
    assert CELLS["chunks-side-by-side"].chunked
    assert not CELLS["default"].chunked
    assert not CELLS["blocks-128"].chunked


def test_tests_of_a_cell_are_collected_together() -> None:
    """The engine of a cell starts once, and each test of the suites is collected in every cell that is for it."""
    tests = collected("--cells", "default,tight")
    assert [cell for cell, _ in groupby(cell for _, cell in tests)] == ["default", "tight"]
    cells = cells_named(("default", "tight"))
    wanted = {(one.test, cell.name) for one in declared_tests() for cell in cells_for(one.requirement, cells)}
    assert len(tests) == len(wanted)
    assert set(tests) == wanted


def test_cells_come_in_the_order_in_which_they_were_chosen() -> None:
    """Tests that no chosen cell is for come with the first cell."""
    tests = collected("--cells", "tight,default", "-k", "cache_reset or salts_isolate or aborted")
    assert tests == [
        ("test_cache_reset", "tight"),
        ("test_aborted_requests", "tight"),
        ("test_salts_isolate_the_cache", "default"),
        ("test_cache_reset", "default"),
    ]
    assert collected("--cells", "tight", "-k", "salts_isolate") == [("test_salts_isolate_the_cache", "tight")]


def test_an_attached_server_is_the_one_cell() -> None:
    """This holds whatever the profile says."""
    tests = collected("--engine-url", "http://127.0.0.1:9", "--profile", "ci")
    assert {cell for _, cell in tests} == {"attached"}
    assert sorted(test for test, _ in tests) == sorted(one.test for one in declared_tests())


@pytest.mark.parametrize(("engine", "cell"), [("llamacpp", "llamacpp-kv-q8"), ("openvino", "openvino-kv-u8")])
def test_a_cell_on_request_runs_only_if_it_is_named(engine: str, cell: str) -> None:
    """For its engine the profile names no cells, so a run without --cells has all others."""
    assert CELLS[cell].on_request
    every = {name for _, name in collected("--engine", engine, "--profile", "ci")}
    assert len(every) > 3
    assert cell not in every
    assert {name for _, name in collected("--engine", engine, "--cells", cell)} == {cell}


def test_a_case_is_replayed_by_the_test_with_the_fewest_needs() -> None:
    """The first test of CHAT-1 sends chats. With it, a case of token ids was UNSUPPORTED on an engine without chats."""
    case = "findings/openvino/prefill-writes-into-shared-blocks/case.json"
    assert collected("--engine", "openvino", "--replay", case) == [("test_prompts_that_share_a_prefix", "openvino")]


def test_a_case_is_not_replayed_by_a_test_of_something_else(tmp_path: Path) -> None:
    """The test of TIER-1 with the fewest needs is about KV that is saved under a name, which vLLM cannot."""
    kept = json.loads(Path("findings/vllm/offloading-appends-a-sessions-blocks/case.json").read_text(encoding="utf-8"))
    case = tmp_path / "case.json"
    case.write_text(json.dumps(kept | {"requirement": "TIER-1", "test": "test_pool_emptied_and_prompts_sent_again"}))
    (replayed,) = collected("--worker", "fingerprint", "--replay", str(case))
    assert replayed == ("test_pool_emptied_and_prompts_sent_again", "tier-offload")
