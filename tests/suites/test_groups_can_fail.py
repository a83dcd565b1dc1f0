"""GROUP-1 detects faults in a real vLLM with several groups of blocks, and names the writer of the KV."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from support.faults import plant
from support.faulty_runs import ANY_HIT, EXAMPLES, LOST, Bench, one_for_each_requirement, open_bench
from support.nightly import with_samples

from coldproof.adapters.registry import CELLS
from coldproof.adapters.spec.cell import Cell
from coldproof.harness.proof.pipeline import ProofPipeline
from coldproof.harness.schema.verdict import FailureClass, Verdict
from coldproof.suites import test_chat_preludes as chats
from coldproof.suites import test_groups as groups

pytestmark = pytest.mark.engine
WINDOW, FIVE, STATE = (CELLS[name] for name in ("groups-window", "groups-five", "groups-state"))
FITTING = CELLS["groups-five-0-fitting"]


BROKEN: list[tuple[Callable[..., None], str, Cell, tuple[FailureClass, ...]]] = [
    (groups.test_shared_prefixes_over_groups, "half-a-block-is-hashed", WINDOW, ANY_HIT),
    (groups.test_a_prompt_sent_again_over_groups, "hashes-differ-each-time", FIVE, LOST),
    (groups.test_adapters_over_groups, "hashes-lack-the-salt-and-the-adapter", STATE, ANY_HIT),
    (groups.test_a_prompt_sent_again_over_groups, "half-a-window-is-kept", WINDOW, ANY_HIT),
    (groups.test_long_conversations_over_groups, "half-a-block-is-hashed", WINDOW, ANY_HIT),
    (groups.test_shared_prefixes_over_groups, "blocks-where-prompts-part-are-not-kept", WINDOW, LOST),
    (groups.test_long_conversations_over_groups, "blocks-behind-a-window-are-evicted-last", FITTING, LOST),
    (
        chats.test_prompts_that_share_a_prefix,
        "multiples-of-the-interval-are-not-kept",
        CELLS["sliding-window-retained"],
        LOST,
    ),
]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Yield a run without a model: the layers are those of the topology."""
    with open_bench(tmp_path_factory.mktemp("broken") / "report", "fingerprint") as made:
        yield made


@pytest.mark.parametrize(
    ("test", "fault", "cell", "classes"),
    one_for_each_requirement(BROKEN, elsewhere=["CHAT-1"]),
)
def test_an_injected_fault_is_detected(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    test: Callable[..., None],
    fault: str,
    cell: Cell,
    classes: tuple[FailureClass, ...],
) -> None:
    """The failure class fits, short prompts are confirmed on a fresh engine, and a wrong answer has its provenance."""
    plant(fault, monkeypatch)
    if cell is FITTING:  # one run of a conversation that fills the pool takes ten seconds
        monkeypatch.setattr(ProofPipeline, "minimise", lambda _, found: found.smallest)
    case = bench.violation(test, cell, examples=3 * EXAMPLES, fresh=cell is not FITTING)
    assert case.failure_class in classes, case.sentence
    assert bool(case.provenance) is (case.first_difference is not None)


@pytest.mark.parametrize("cell", with_samples([WINDOW, FIVE, STATE], WINDOW), ids=lambda cell: cell.name)
def test_the_unmodified_engine_conforms(bench: Bench, cell: Cell) -> None:
    """There is no false positive in any of the topologies."""
    verdict, reason, cases = bench.verdict(groups.test_a_prompt_sent_again_over_groups, cell, examples=EXAMPLES)
    assert verdict is Verdict.CONFORMS, reason
    assert cases == []
