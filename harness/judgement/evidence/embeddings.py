"""Evidence about prompts with embedding rows. Pure."""

from __future__ import annotations

from coldproof.harness.history.embedding_rows import Difference, differences, hit_rows
from coldproof.harness.history.records import History
from coldproof.harness.judgement.evidence.names import Evidence


def embedding_facts(history: History) -> dict[str, float]:
    """Return the counters of prompts with rows, of hits in rows, and of prompts that a wrong key would confuse."""
    outcomes = [o for o in history.outcomes if o.error is None and o.hidden]
    found = [differences(history, o) for o in outcomes]
    return {
        Evidence.ROW_PROMPTS: len(outcomes),
        Evidence.ROW_HITS: sum(map(hit_rows, outcomes)),
        Evidence.OTHER_ROWS: sum(Difference.ROWS in one for one in found),
        Evidence.OTHER_MASK: sum(not one.isdisjoint((Difference.MASK, Difference.MASK_OVER_ZEROS)) for one in found),
    }
