"""GROUP-1 is put to a really broken vLLM with several groups of blocks, and says whose KV was read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from harness.cells import CELLS, Cell
from reports.schema import Verdict
from suites import test_groups as groups
from tests import broken_vllm as broken
from tests.test_every_requirement_can_fail import ANY_HIT, EXAMPLES, LOST, Bench, opened

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]
WINDOW, FIVE, STATE = (CELLS[name] for name in ("groups-window", "groups-five", "groups-state"))


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Without a model: the layers are the topology's."""
    with opened(tmp_path_factory.mktemp("broken") / "report", "fingerprint") as made:
        yield made


def half_a_window_is_kept(patch: pytest.MonkeyPatch) -> None:
    """A hit needs only half the blocks that a window reads: the rest is whatever lies there."""

    def found(original: Any, *arguments: Any, kv_cache_spec: Any, **named: Any) -> Any:
        half = dataclasses.replace(kv_cache_spec, sliding_window=kv_cache_spec.sliding_window // 2)
        return original(*arguments, kv_cache_spec=half, **named)

    manager = broken.module("v1.core.single_type_kv_cache_manager").SlidingWindowManager
    broken.around(patch, manager, "find_longest_cache_hit", found)


@pytest.mark.parametrize(
    ("test", "fault", "cell", "classes"),
    [
        pytest.param(
            groups.test_shared_preludes_over_groups, broken.half_a_block_is_hashed, WINDOW, ANY_HIT, id="hash"
        ),
        pytest.param(
            groups.test_a_prompt_sent_again_over_groups, broken.hashes_differ_each_time, FIVE, LOST, id="lost"
        ),
        pytest.param(groups.test_adapters_over_groups, broken.hashes_forget_who_asks, STATE, ANY_HIT, id="adapters"),
        pytest.param(groups.test_a_prompt_sent_again_over_groups, half_a_window_is_kept, WINDOW, ANY_HIT, id="window"),
    ],
)
def test_a_broken_engine_is_found_out(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    test: Callable[..., None],
    fault: broken.Fault,
    cell: Cell,
    classes: tuple[Any, ...],
) -> None:
    """VIOLATED, confirmed, for a reason that fits; a wrong answer comes with its provenance."""
    fault(monkeypatch)
    case = bench.violation(test, cell, examples=3 * EXAMPLES)
    assert case.failure_class in classes, case.sentence
    assert bool(case.provenance) is (case.first_difference is not None)


@pytest.mark.parametrize("cell", [WINDOW, FIVE, STATE], ids=lambda cell: cell.name)
def test_the_engine_as_it_is_conforms(bench: Bench, cell: Cell) -> None:
    """No false alarm in any of the topologies."""
    verdict, reason, cases = bench.verdict(groups.test_a_prompt_sent_again_over_groups, cell, examples=EXAMPLES)
    assert verdict is Verdict.CONFORMS, reason
    assert cases == []
