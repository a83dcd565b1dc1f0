"""Evidence about prompts with embedding rows. Pure."""

from __future__ import annotations

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.harness.history.embedding_rows import Difference, differences, hit_rows, sends_rows
from coldproof.harness.history.records import History, Outcome, assumed_block, holds_written_block
from coldproof.harness.judgement.counters import Evidence, computes


class Rows(Evidence):
    """Prompts with embedding rows."""

    PROMPTS = "prompts with embedding rows"
    HITS = "hits that reached into embedding rows", Capability.EMBEDDING_ROWS
    OTHER_ROWS = "requests that differ from another one only in an embedding row of a block"
    OTHER_MASK = "requests that differ from another one only in which positions of a block are rows"
    TURNS = "next turns after embedding rows that could hit what decode wrote"


@computes(Rows, order=110)
def embedding_facts(history: History) -> dict[str, float]:
    """Return the counters of prompts with rows, of hits in rows, and of prompts that a wrong key would confuse."""
    outcomes = [o for o in history.outcomes if o.error is None and sends_rows(o)]
    found = [differences(history, o) for o in outcomes]
    return {
        Rows.PROMPTS: len(outcomes),
        Rows.HITS: sum(map(hit_rows, outcomes)),
        Rows.OTHER_ROWS: sum(Difference.ROWS in one for one in found),
        Rows.OTHER_MASK: sum(not one.isdisjoint((Difference.MASK, Difference.MASK_OVER_ZEROS)) for one in found),
        Rows.TURNS: sum(follows_answer(history, o) for o in outcomes),
    }


def follows_answer(history: History, outcome: Outcome) -> bool:
    """Return whether a prompt contains a whole block that the decode of an earlier prompt with rows wrote."""
    block = assumed_block(history)
    return any(
        sends_rows(other)
        and other.finished <= outcome.sent
        and set(other.identities) & set(outcome.identities)
        and holds_written_block(other, outcome, block)
        for other in history.outcomes
    )
