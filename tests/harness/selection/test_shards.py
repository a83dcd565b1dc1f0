"""Every test is in one shard, no shard is empty, and all machines divide the tests in the same way."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.paths import ROOT
from support.suite_runs import run_pytest

from coldproof.harness.options import UsageError
from coldproof.harness.selection.shards import Shard, assign_shards, read_shard
from coldproof.harness.session.plugin import asks_for_suites


@pytest.mark.parametrize("text", ["", "1", "0/2", "3/2", "1/0", "-1/2", "1/2/3", "a/b"])
def test_what_is_no_shard_is_usage(text: str) -> None:
    """The message shows how to write a shard."""
    with pytest.raises(UsageError, match="use for example 2/3 for the second of three"):
        read_shard(text)


def test_a_shard_is_read_as_it_is_written() -> None:
    """The example is the second of three."""
    assert read_shard("2/3") == Shard(2, 3)
    assert str(Shard(2, 3)) == "2/3"


@given(st.lists(st.sampled_from([0.5, 1.0, 2.0, 4.0]), min_size=1, max_size=60), st.data())
def test_every_test_is_in_one_shard_and_no_shard_is_empty(weights: list[float], data: st.DataObject) -> None:
    """The order of the tests is kept, so that the tests of a cell stay together."""
    of = data.draw(st.integers(1, len(weights)))
    numbers = assign_shards(weights, of)
    assert numbers == sorted(numbers)
    assert set(numbers) == set(range(1, of + 1))


def test_shards_weigh_about_the_same() -> None:
    """A slow test counts for several."""
    assert assign_shards([1, 1, 1, 1, 4], 2) == [1, 1, 1, 1, 2]
    assert assign_shards([1] * 9, 3) == [1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_more_shards_than_tests_are_usage() -> None:
    """An empty shard would show nothing, and would look like a lost machine."""
    with pytest.raises(UsageError, match="2 tests cannot be divided into 3 shards"):
        assign_shards([1, 1], 3)


SUITES = ("suites/test_cache_salt.py", "suites/test_control.py", "suites/test_ground.py")  # of three: faster than all


def collected(*words: str) -> list[str]:
    """Return the tests that a run would make."""
    done = run_pytest([*SUITES, "--collect-only", "-q", *words])
    return [line for line in done.stdout.splitlines() if "::" in line]


def test_the_shards_of_a_run_are_the_run() -> None:
    """Together they collect each test once, and no cell's tests are in more shards than necessary."""
    words = ("--engine", "llamacpp", "-k", "salts or aborted or batch")
    whole = collected(*words)
    parts = [collected(*words, "--shard", f"{number}/2") for number in (1, 2)]
    assert sorted(parts[0] + parts[1]) == sorted(whole)
    assert all(parts)
    cells = [{line.partition("[")[2] for line in part} for part in parts]
    assert len(cells[0] & cells[1]) <= 1


@pytest.mark.parametrize(
    ("paths", "suites"),
    [
        (["tests"], False),
        (["tests/harness/selection/test_shards.py::test_name", "tests/contract"], False),
        (["suites"], True),
        (["tests", "suites"], True),
        (["."], True),
        (["src/coldproof/suites"], True),
        (["coldproof.suites"], True),
        (["coldproof.suites_of_somebody_else"], False),
        (["suites/test_reuse.py::test_a_prompt_sent_again"], True),
        (["adapters"], False),
    ],
)
def test_the_controller_knows_by_the_paths_whether_suites_run(
    paths: list[str], suites: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With xdist the controller collects nothing, and opens the report only for a run of suites."""
    monkeypatch.chdir(ROOT)
    assert asks_for_suites(cast(pytest.Config, SimpleNamespace(args=paths))) is suites
