"""Evidence about sessions: turns that went on, and requests that could share KV with what a session computed. Pure."""

from __future__ import annotations

from coldproof.harness.features.sessions.workloads import SHORT_FIRST
from coldproof.harness.history.records import History, Outcome, assumed_block, common_prefix, written_tokens
from coldproof.harness.judgement.counters import Evidence, computes


class Sessions(Evidence):
    """Turns of sessions, and requests that could share KV with them."""

    TURNS = "later turns of a session"
    HELD = "later turns of a session that hit what it held"
    SWITCHES = "turns with another adapter than the turn before"
    HITS = "hits on what only a later turn of a session computed"
    SHORT_FIRST = SHORT_FIRST
    DROPS = "requests that begin with a block whose last token a session had dropped"


@computes(Sessions, order=210)
def session_facts(history: History) -> dict[str, float]:
    """Return the counters of later turns, of their hits, of changes of the adapter between turns, of hits on what later
    turns computed, of sessions that began with less than a block, and of blocks with a dropped token.
    """
    pairs = successive_turns(history)
    others = [outcome for outcome in history.outcomes if outcome.answered and not outcome.session]
    return {
        Sessions.TURNS: len(pairs),
        Sessions.HELD: sum(turn.hit_at_least > 0 for _, turn in pairs),
        Sessions.SWITCHES: sum(other_adapter(*pair) for pair in pairs),
        Sessions.HITS: sum(any(hit_turn(o, *pair) for pair in pairs) for o in others),
        Sessions.SHORT_FIRST: sum(len(written_tokens(before)) < assumed_block(history) for before, _ in pairs),
        Sessions.DROPS: sum(any(could_hit_dropped(history, o, *pair) for pair in pairs) for o in others),
    }


def successive_turns(history: History) -> list[tuple[Outcome, Outcome]]:
    """Return each answered turn that went on, with the turn before it."""
    latest: dict[str, Outcome] = {}
    found = []
    for outcome in history.outcomes:
        if outcome.session:
            before = latest.get(outcome.session)
            if before is not None and outcome.answered:
                found.append((before, outcome))
            latest[outcome.session] = outcome
    return found


def other_adapter(before: Outcome, turn: Outcome) -> bool:
    """Return whether a turn has another adapter, or none, than the turn before."""
    return before.partition.name != turn.partition.name


def may_share(outcome: Outcome, turn: Outcome) -> bool:
    """Return whether a request came after a turn, and may share its KV."""
    return turn.finished <= outcome.sent and bool(set(turn.identities) & set(outcome.identities))


def hit_turn(outcome: Outcome, before: Outcome, turn: Outcome) -> bool:
    """Return whether a request hit what a turn computed beyond what its session held."""
    held = len(written_tokens(before))
    return may_share(outcome, turn) and held < outcome.hit_at_least <= common_prefix(
        written_tokens(turn), outcome.prompt
    )


def could_hit_dropped(history: History, outcome: Outcome, before: Outcome, turn: Outcome) -> bool:
    """Return whether a request begins with a turn and its whole answer, whose last token ends a block, after the
    session went on with another token in its place. An engine that keeps the block's hash shares the wrong KV.
    """
    whole = before.prompt + before.token_ids
    went_on = turn.prompt[len(whole) - 1 :][:1] != whole[-1:]
    block = assumed_block(history)
    return may_share(outcome, turn) and went_on and len(whole) % block == 0 and outcome.prompt[: len(whole)] == whole
