"""GROUP-1 is put to a really broken vLLM with several groups of blocks, and says whose KV was read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.faults import plant
from support.faulty_runs import ANY_HIT, EXAMPLES, LOST, Bench, opened

from coldproof.adapters.registry import CELLS
from coldproof.adapters.spec.cell import Cell
from coldproof.reports.schema.verdict import Verdict
from coldproof.suites import test_chat_preludes as chats
from coldproof.suites import test_groups as groups

pytestmark = pytest.mark.engine
WINDOW, FIVE, STATE = (CELLS[name] for name in ("groups-window", "groups-five", "groups-state"))


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Without a model: the layers are the topology's."""
    with opened(tmp_path_factory.mktemp("broken") / "report", "fingerprint") as made:
        yield made


@pytest.mark.parametrize(
    ("test", "fault", "cell", "classes"),
    [
        pytest.param(groups.test_shared_prefixes_over_groups, "half-a-block-is-hashed", WINDOW, ANY_HIT, id="hash"),
        pytest.param(groups.test_a_prompt_sent_again_over_groups, "hashes-differ-each-time", FIVE, LOST, id="lost"),
        pytest.param(groups.test_adapters_over_groups, "hashes-forget-who-asks", STATE, ANY_HIT, id="adapters"),
        pytest.param(
            groups.test_a_prompt_sent_again_over_groups, "half-a-window-is-kept", WINDOW, ANY_HIT, id="window"
        ),
        pytest.param(groups.test_shared_prefixes_over_groups, "junctions-are-not-kept", WINDOW, LOST, id="junctions"),
        pytest.param(
            groups.test_long_conversations_over_groups,
            "what-a-window-leaves-is-evicted-last",
            CELLS["groups-five-0-fitting"],
            LOST,
            id="left",
        ),
        pytest.param(
            chats.test_prompts_that_share_a_prefix,
            "multiples-of-the-interval-are-not-kept",
            CELLS["sliding-window-retained"],
            LOST,
            id="multiples",
        ),
    ],
)
def test_a_broken_engine_is_found_out(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    test: Callable[..., None],
    fault: str,
    cell: Cell,
    classes: tuple[Any, ...],
) -> None:
    """VIOLATED for a reason that fits, confirmed where prompts are short; a wrong answer comes with its provenance."""
    plant(fault, monkeypatch)
    case = bench.violation(test, cell, examples=3 * EXAMPLES, fresh=cell.name != "groups-five-0-fitting")
    assert case.failure_class in classes, case.sentence
    assert bool(case.provenance) is (case.first_difference is not None)


@pytest.mark.parametrize("cell", [WINDOW, FIVE, STATE], ids=lambda cell: cell.name)
def test_the_engine_as_it_is_conforms(bench: Bench, cell: Cell) -> None:
    """No false alarm in any of the topologies."""
    verdict, reason, cases = bench.verdict(groups.test_a_prompt_sent_again_over_groups, cell, examples=EXAMPLES)
    assert verdict is Verdict.CONFORMS, reason
    assert cases == []
