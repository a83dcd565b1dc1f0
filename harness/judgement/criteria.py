"""Describes what each checker looks for. Every checker judges every example, whatever requirement it is drawn for.

Any finding therefore violates the requirement, except those that the requirement's own fields leave to others.
"""

from __future__ import annotations

from coldproof.harness.judgement.requirement import Requirement

CHECKS = {  # the gravest first: findings are reported in this order
    "liveness": (
        "A request without an answer: no progress for as long as a hundred cold answers take, a crashed engine, an "
        "error or an empty answer. An adapter change that fails. An answer to a prompt that can never fit."
    ),
    "tokens": (
        "A token that differs from every cold answer that the request may have, under each identity that it may have."
    ),
    "pooled": (
        "A pooled answer with too few or too many vectors or values, a value that is no finite number, or a value that "
        "differs from every cold answer that the request may have by more than rounding can cause."
    ),
    "surface": (
        "Logprobs, finish reasons, texts or additional answers that are missing, incomplete or different from the cold "
        "ones; an answer to a different prompt than the one sent."
    ),
    "doors": (
        "An answer at one door of a server to a request whose priority another door refuses as impossible: the first "
        "door ignores priorities."
    ),
    "weights": (
        "An answer over an update of the weights that is not the cold continuation of its own tokens under the new "
        "weights, where the engine discarded its KV. A request that a pause did not end or wait for as its mode says, "
        "or that went on during the pause. A confirmed update after which the engine's checksum is that of other "
        "weights."
    ),
    "bounds": (
        "More cached tokens than were ever computed for the request's identity, or fewer than an earlier request left "
        "in the cache and the engine had no need to evict."
    ),
    "accounting": (
        "Hit counters of the engine that disagree with the cached tokens reported for each request, or that grow by "
        "more tokens than were looked up or, where requests report no counts, than they may have hit. A decoder that "
        "fetches fewer tokens from a prefiller than it may have had itself, or more than it lacked. Where the "
        "engine's steps are recorded: a count that is not the number of tokens that a request did not compute."
    ),
    "drafts": (
        "Fewer drafts of speculative decoding accepted for a request that hit than for the same prompt and answer "
        "without a hit, each alone; less than half of them if answers need not be exact."
    ),
    "concurrency": (
        "Identical prompts that wait although the pool has room for them to run concurrently with shared blocks. Where "
        "the engine's steps are recorded: any request that waits although nothing is short."
    ),
    "order": (
        "A request that is preempted while a less urgent one keeps running, if requests have priorities, or an equal "
        "one that came later, if the engine documents that the later one is preempted first. A preempted "
        "request that is resumed after a later one was admitted, if the engine documents that it comes first. A "
        "request that is admitted before an earlier one that is not less urgent, or before a more urgent one that was "
        "sent by then, where the engine's steps are recorded."
    ),
    "conservation": (
        "Any request that runs or waits, or any block in use, after an idle gap; a pool gauge of zero while requests "
        "run, or above one. Where the engine's steps are recorded: gauges that are not the number of unanswered "
        "requests and the share of blocks that are not free, a step that exceeds the engine's limits, a reset that "
        "fails while no request holds blocks."
    ),
    "events": "Published KV events that contradict one another, the requests or the hits.",
    "hashes": "A block hash that does not follow from the fields of its own event.",
}
TOKENS = "tokens"  # the checker of answers
OF_ANSWERS = (TOKENS, "pooled")  # the checkers that compare answers with cold ones
NOT_OVERLAPPED = "Wrong answers of requests that overlap an adapter change are left to another requirement."


def failing_checks(requirement: Requirement) -> list[str]:
    """Return what violates a requirement: one text for each checker, in the order in which findings are reported."""
    words = dict(CHECKS)
    if not requirement.overlapped_too:
        words["tokens"] += f" {NOT_OVERLAPPED}"
    if not requirement.hashes_too:
        del words["hashes"]
    return list(words.values())
