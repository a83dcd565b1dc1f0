"""Compares answers of an engine whose correct answers differ a little: see `judgement/checkers/noise_tolerance.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from coldproof.adapters.spec.script.client import Event, Sent
from coldproof.adapters.spec.script.given import NOISE
from coldproof.adapters.spec.script.http import CannotSay
from coldproof.harness.case.reproducer.kit.exact import near
from coldproof.harness.case.reproducer.kit.reply import Reply


def noisy_differences(mine: Reply, cold: Reply, sent: Sent, again: Callable[[Sent], Iterable[Event]]) -> list[str]:
    """Return which parts of an answer differ from the cold answer by more than NOISE allows. `again`: sends cold."""
    whole, wanted = "abort" not in sent, sent.get("extra", {})
    both = zip(mine.ids, cold.ids, strict=False)
    diverged = next((i for i, (one, other) in enumerate(both) if one != other), None)
    allowed = NOISE.get("prompt", NOISE["gap"])
    wrong = {
        "length": whole and len(mine.ids) != len(cold.ids) and (diverged is None or "stop" not in wanted),
        "finish reason": whole and mine.ids == cold.ids and mine.end != cold.end,
        "prompt scores": not near(mine.prompt_scores, cold.prompt_scores, allowed or 0.0),
    }
    # Scores of sampled or grammar-constrained tokens are not comparable.
    comparable = "score" in NOISE and not {"n", "structured_outputs"} & set(wanted)
    scored = forced(mine, sent, again) if comparable else []
    if mine.scores and any(said is not None for said, _ in scored):
        wrong |= by_scores(mine, cold, scored, diverged)
    elif diverged is not None:
        if diverged >= len(cold.leads):
            raise CannotSay("the answers diverge, and there are no scores to show whether that is noise")
        print(f"  logprob margin of the cold answer's token {diverged}: {cold.leads[diverged]:.3g} nats")
        wrong["tokens"] = cold.leads[diverged] > (NOISE["gap"] or 0.0)
    return [what for what, differs in wrong.items() if differs]


def forced(mine: Reply, sent: Sent, again: Callable[[Sent], Iterable[Event]]) -> list[tuple[Any, Any]]:
    """Return a cold start's (score, best score) of each token of an answer, each given the tokens before it."""
    for ids in (mine.ids, mine.ids[:-1]):  # there may be no room for one more token: score all but the last
        try:
            reply = Reply(again({**sent, "ids": sent["ids"] + ids, "tokens": 1, "extra": {"prompt_logprobs": 1}}))
        except OSError:
            continue
        return list(zip(reply.prompt_scores, reply.prompt_best, strict=True))[len(sent["ids"]) :]
    return []


def by_scores(mine: Reply, cold: Reply, scored: list[tuple[Any, Any]], diverged: int | None) -> dict[str, bool]:
    """Compare the scores of the same tokens: largest difference, largest margin by which a cold start prefers another
    token, and number of tokens that a cold start would not choose.
    """
    score, margin, others = 0.0, 0.0, 0
    for i, (own, (said, best)) in enumerate(zip(mine.scores, scored, strict=False)):
        if best is None:  # use the cold answer, up to where the answers diverge
            best = cold.scores[i] if i < len(cold.scores) and (diverged is None or i <= diverged) else said
        lead = mine.leads[i] if i < len(mine.leads) else 0.0
        score, margin = max(score, abs(own - said)), max(margin, best - said + lead if best > said else 0.0)
        others += best > said
    print(f"  largest score difference {score:.3g} nats, largest margin {margin:.3g} nats")
    print(f"  {others} tokens that a cold start would not choose")
    flips = NOISE["flips"]
    return {
        "scores": score > (NOISE["score"] or 0.0),
        "margins": margin > (NOISE["margin"] or 0.0),
        "choices": flips is not None and others >= flips,
    }
