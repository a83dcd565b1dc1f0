"""Counts of requests after updates of the weights, by the route of the update and by what made the engine forget.

`coldproof.harness.judgement.weight_pairs` counts them in judged histories. The texts are data of results.json.
"""

from __future__ import annotations

import enum

import msgspec


class Invalidation(enum.StrEnum):
    """The calls after which the engine must have forgotten KV of other weights, in their order. In the order of tables.

    Every pause here clears the cache, and every sleep discards the KV.
    """

    UPDATE = "update"
    RESET = "update, cache reset"
    RESET_BEFORE = "cache reset, update"
    KEEP_AROUND = "pause (keep, clear), update, resume"
    KEEP_AFTER = "update, pause (keep, clear), resume"
    ABORT_AROUND = "pause (abort, clear), update, resume"
    ABORT_AFTER = "update, pause (abort, clear), resume"
    WAIT_AROUND = "pause (wait, clear), update, resume"
    WAIT_AFTER = "update, pause (wait, clear), resume"
    SLEEP_BEFORE = "sleep, wake up, update"
    SLEEP_AFTER = "update, sleep, wake up"
    DEEP_SLEEP = "sleep, wake up the weights, update, wake up the KV"
    SALT = "update, another cache salt"
    NOTHING = "update, nothing else"


# The capabilities without which an engine has none of these, by their names in results.json.
INVALIDATION_NEEDS = {
    Invalidation.RESET: "cache reset",
    Invalidation.KEEP_AROUND: "pause that keeps requests",
    Invalidation.KEEP_AFTER: "pause that keeps requests",
    Invalidation.ABORT_AROUND: "pause that aborts requests",
    Invalidation.ABORT_AFTER: "pause that aborts requests",
    Invalidation.WAIT_AROUND: "pause that waits for requests",
    Invalidation.WAIT_AFTER: "pause that waits for requests",
    Invalidation.SLEEP_BEFORE: "sleep and wake",
    Invalidation.SLEEP_AFTER: "sleep and wake",
    Invalidation.DEEP_SLEEP: "sleep that discards the weights",
    Invalidation.SALT: "cache salt",
}
ROUTE_NEEDS = {
    "reload from another path": "weights reloaded from another path",
    "reload from the same path with changed files": "weights reloaded from the same path",
    "change in place": "weights changed in place",
    "weight transfer": "weights transferred",
}
# What an engine can promise -> the pairs that a run then tests.
PROMISED = {
    "invalidates": (Invalidation.UPDATE,),
    "on reset": tuple(INVALIDATION_NEEDS),
    "version in the salt": (Invalidation.SALT,),
}


class UpdateCount(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of one requirement in one cell for one pair of route and invalidation.

    `requests`: those that share a block of their prompt with what other weights computed before. `wrong`: those of them
    with a wrong answer, or with a hit that must not be. After NOTHING, no answer is compared, and `hits` counts the
    requests that hit old KV; None: the engine does not report hits.
    `policy`: what the engine promises, by its name.
    """

    requirement: str
    cell: str
    layer: str = ""
    route: str
    invalidation: Invalidation
    policy: str
    requests: int
    wrong: int = 0
    hits: int | None = None
