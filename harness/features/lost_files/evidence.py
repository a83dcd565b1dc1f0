"""Evidence about files of a tier that were lost. Pure."""

from __future__ import annotations

from coldproof.harness.features.lost_files.steps import LoseFiles
from coldproof.harness.history.records import History, Outcome, common_prefix, requests_with_same_identity
from coldproof.harness.judgement.counters import Evidence, computes


class LostFiles(Evidence):
    """Losses of a tier's files."""

    LOSSES = "losses of the files of a tier"
    MISSED = "requests that did not hit all of a prefix whose files were lost"


@computes(LostFiles, order=105)
def lost_file_facts(history: History) -> dict[str, float]:
    """Return the counters of losses."""
    lost = [place for place, step in enumerate(history.workload.steps) if isinstance(step, LoseFiles)]
    return {
        LostFiles.LOSSES: len(lost),
        LostFiles.MISSED: sum(missed(history, o, lost) for o in history.outcomes),
    }


def missed(history: History, outcome: Outcome, lost: list[int]) -> bool:
    """Return whether a request hit less than a prefix that another one of its identity had computed before a loss."""
    last = max((step for step in lost if step < outcome.step), default=None)
    block = history.shape.block_size
    if last is None or block is None or not outcome.answered or outcome.hit_at_most is None:
        return False
    before = (other for other in requests_with_same_identity(history, outcome) if other.step < last)
    shared = max((common_prefix(other.prompt, outcome.prompt) for other in before), default=0)
    return outcome.hit_at_most < min(shared, len(outcome.prompt) - 1) // block * block
