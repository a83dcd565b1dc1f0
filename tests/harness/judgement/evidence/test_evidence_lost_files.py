"""Evidence that files of a tier were lost, and that a request needed what was in them."""

from __future__ import annotations

import pytest
from support.histories import burst, history, outcome, shape

from coldproof.adapters.protocol.lost_files import Loss
from coldproof.harness.features.lost_files.evidence import LostFiles, lost_file_facts
from coldproof.harness.features.lost_files.steps import LoseFiles
from coldproof.harness.workload.steps import Workload

PROMPT = tuple(range(70))
TURNS = Workload((burst(), LoseFiles(Loss.REMOVED), burst()))


def missed(hit: int, *, step: int = 2, prompt: tuple[int, ...] = PROMPT, before: tuple[int, ...] = PROMPT) -> float:
    """Return the counter after a loss for a request that hit so many tokens of what one before the loss computed."""
    first = outcome(0, prompt=before, step=0, cached_tokens=0)
    then = outcome(1, prompt=prompt, step=step, cached_tokens=hit, sent=2.0, finished=3.0)
    facts = lost_file_facts(history(first, then, workload=TURNS, shape=shape(block_size=32)))
    assert facts[LostFiles.LOSSES] == 1
    return facts[LostFiles.MISSED]


@pytest.mark.parametrize("hit", [0, 32])
def test_a_request_that_hits_less_than_was_computed_missed_something(hit: int) -> None:
    """Two whole blocks were computed before the files were lost."""
    assert missed(hit) == 1


def test_a_request_that_hits_all_of_it_missed_nothing() -> None:
    """The pool or the host had it, or the loss did nothing."""
    assert missed(64) == 0


def test_only_what_was_computed_before_the_loss_counts() -> None:
    """Neither a request before the loss, nor one of another prompt, needs what was in the files."""
    assert missed(0, step=0) == 0
    assert missed(0, before=tuple(range(100, 170))) == 0
