"""Evidence about requests with a salt. Pure."""

from __future__ import annotations

import unicodedata

from coldproof.harness.features.salts.workloads import LIKE_A_NAME, Alike
from coldproof.harness.history.records import History, assumed_block, common_prefix, written_tokens
from coldproof.harness.judgement.counters import Evidence, computes
from coldproof.harness.workload.steps import Request

FEW, MANY = 8, 100  # first characters that two salts have in common


class Salts(Evidence):
    """Requests with a salt, and those that could have hit KV of an almost equal one."""

    HITS = "hits under a salt"
    ALMOST = "requests that could have hit KV of an almost equal salt"
    CASE = Alike.CASE.chance
    SPACES = Alike.SPACES.chance
    FORM = Alike.FORM.chance
    LONGER = Alike.LONGER.chance
    EIGHT = Alike.EIGHT.chance
    HUNDRED = Alike.HUNDRED.chance
    LIKE_A_NAME = LIKE_A_NAME


@computes(Salts, order=30)
def salt_facts(history: History) -> dict[str, float]:
    """Return the counters of hits under a salt, and of chances to hit KV of another one that a wrong key confuses."""
    outcomes = [o for o in history.outcomes if o.error is None]
    found: list[set[str]] = list(chances(history).values())
    return {
        Salts.HITS: sum(o.hit_at_least > 0 and o.partition.salt is not None for o in outcomes),
        Salts.ALMOST: sum(bool(names - {LIKE_A_NAME}) for names in found),
        LIKE_A_NAME: sum(LIKE_A_NAME in names for names in found),
        **{alike.chance: sum(alike.chance in names for names in found) for alike in Alike},
    }


def chances(history: History) -> dict[int, set[str]]:
    """Return, by the number of an answered request, what evidence it is: a block of its prompt was computed before
    under a salt or a name that is almost its own.
    """
    requests = {number: request for number, _, request in history.workload.requests()}
    asked = [(outcome, requests[outcome.request]) for outcome in history.outcomes if outcome.request in requests]
    block = assumed_block(history)
    found: dict[int, set[str]] = {}
    for outcome, own in asked:
        for other, before in asked if outcome.answered else ():
            names = confusable(own, before) if other.sent <= outcome.sent else ()
            if names and common_prefix(written_tokens(other), outcome.prompt) >= block:
                found.setdefault(outcome.request, set()).update(names)
    return found


def confusable(one: Request, two: Request) -> list[str]:
    """Return what evidence it is if a request could hit what another one computed."""
    names = [alike.chance for alike in Alike if one.salt and two.salt and are(alike, one.salt, two.salt)]
    like_a_name = (one.salt and one.salt == two.adapter) or (two.salt and two.salt == one.adapter)
    return [*names, LIKE_A_NAME] if like_a_name and one.adapter != two.adapter else names


def are(alike: Alike, one: str, two: str) -> bool:
    """Return whether two salts are almost equal in this way, and not equal."""
    if one == two:
        return False
    match alike:
        case Alike.CASE:
            return one.casefold() == two.casefold()
        case Alike.SPACES:
            return one.strip() == two.strip()
        case Alike.FORM:
            return unicodedata.normalize("NFKC", one) == unicodedata.normalize("NFKC", two)
        case Alike.LONGER:
            return one.startswith(two) or two.startswith(one)
        case Alike.EIGHT:
            return one[:FEW] == two[:FEW] and len(one) >= FEW
        case Alike.HUNDRED:
            return one[:MANY] == two[:MANY] and len(one) >= MANY
