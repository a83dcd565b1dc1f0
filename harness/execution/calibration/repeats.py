"""How well a cold engine repeats its answers: alone, alone again, in a batch of the same adapter, and in its prompt.

A prompt that ends with the first half of an answer is continued with the other half. There, prefill computes what
decode computed before, and on a hit an answer has the KV of decode. With activations that are quantised per batch, the
two differ although equal requests repeat.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from coldproof.harness.execution.oracles.engine import EngineOracle
from coldproof.harness.history.records import common_prefix
from coldproof.harness.judgement.oracle import Answer, OracleError, Question
from coldproof.harness.schema.divergences import Rate
from coldproof.harness.workload.request_kinds import RequestKind

# If scores differ by more, equal tokens are luck: with such noise, one token in a thousand would change. A different
# order of float32 additions changes scores by about 1e-6.
REPEATED_NATS = 1e-3
# Repeated tokens between two close candidates, none of which changed, that rule out that rounding chooses there. If it
# chose another one in one of five computations, as many would all be equal once in eight thousand times.
STEADY_TOKENS = 40
# Steps between scores that are looked for. Logits of bfloat16 have steps of 2^-6 and more where a best token's are,
# float16 of 2^-9 and more. A float32 margin lies so close to a multiple of the finest step in one of twelve cases.
COARSEST_STEP, FINEST_STEP = 2, 12  # as negative powers of two
DIFFERENT_MARGINS = 8  # an engine that reports the same margins for all tokens shows no step
ON_STEP_NATS = 1e-5  # a reported margin is a difference of two logprobs with seven digits

T = TypeVar("T")


class Repeats(msgspec.Struct, frozen=True):
    """How well cold answers repeat: the largest difference in nats, and the number of repeated answers that differ.

    `rate`: how often repeated answers diverged, also where half of one was continued. `nats`: the largest difference of
    a score; None if no score was reported twice. `steady`, `step`: see `ColdAnswers`.
    """

    noise: float
    differing: int
    latency: float  # seconds of one answer on the engine's clock
    waited: float  # seconds of one answer that is sent again, on the wall: a stepped engine's clock does not show them
    continued: float = 0.0  # the largest difference in nats where half an answer was continued, if the rest repeats
    rate: Rate = Rate()
    nats: float | None = None
    steady: float | None = None
    step: float | None = None

    @property
    def exact(self) -> bool:
        """Return whether warm answers must equal cold ones token by token."""
        return self.differing == 0 and max(self.noise, self.continued) <= REPEATED_NATS


def surviving_answers(
    oracle: EngineOracle,
    probes: list[Question],
    wall: Callable[[], float],
    renew: Callable[[], object] | None,
    on_death: Callable[[RequestKind, str], None],
) -> tuple[list[Question], dict[Question, Answer], Repeats]:
    """Return the probes that the engine survives, their answers, and how well these repeat.

    An engine that dies is replaced by `renew`, and asked without logprobs, then without adapters. `on_death` is called
    with the kind of requests without which it lives. Raises OracleError if it dies of all, or cannot be replaced.
    """
    try:
        return probes, *repeated(oracle, probes, wall)
    except OracleError as problem:
        if renew is None:
            raise
        died = problem
    scores, scores_prompts = oracle.scores, oracle.scores_prompts
    plain = [probe for probe in probes if probe.adapter is None]
    for kind, kept in ((RequestKind.LOGPROBS, probes if scores else []), (RequestKind.ADAPTER, plain)):
        if not kept or (kind is RequestKind.ADAPTER and kept == probes):
            continue
        renew()
        without_scores = kind is RequestKind.LOGPROBS
        oracle.scores, oracle.scores_prompts = scores and not without_scores, scores_prompts and not without_scores
        try:
            answers = repeated(oracle, kept, wall)
        except OracleError:
            continue
        on_death(kind, str(died))
        return kept, *answers
    raise died


def repeated(
    oracle: EngineOracle, probes: list[Question], wall: Callable[[], float]
) -> tuple[dict[Question, Answer], Repeats]:
    """Send each probe alone, alone again, and in a batch of its own adapter; compare with the first answers."""
    began = oracle.engine.clock()
    alone = {probe: oracle.ask_without_memo(probe) for probe in probes}
    latency = (oracle.engine.clock() - began) / len(probes)
    again, waited = timed((oracle.ask_without_memo(probe) for probe in probes), wall)
    pairs = [(alone[probe], answer) for probe, answer in zip(probes, again, strict=True)]
    for identity in dict.fromkeys(probe.adapter for probe in probes):
        batch = [probe for probe in probes if probe.adapter == identity]
        pairs += [(alone[probe], answer) for probe, answer in zip(batch, oracle.ask_together(batch), strict=True)]
    return alone, repeats_of(oracle, alone, pairs, latency=latency, waited=waited)


def repeats_of(
    oracle: EngineOracle,
    alone: dict[Question, Answer],
    pairs: list[tuple[Answer, Answer]],
    *,
    latency: float = 0.0,
    waited: float = 0.0,
) -> Repeats:
    """Return how well answers repeat in these pairs and, if they do, where half of each answer is continued.

    `alone`: the first answers. Raises OracleError.
    """
    compared = [compare(*pair) for pair in pairs]
    repeats = Repeats(
        noise=max(delta for delta, _ in compared),
        differing=sum(not same for _, same in compared),
        latency=latency,
        waited=waited,
        rate=sum((rate_of(*pair) for pair in pairs), Rate()),
        nats=largest_nats(pairs),
        steady=steady_margin(pairs),
        step=score_step(first for first, _ in pairs) if oracle.engine.shape.rounds else None,
    )
    if not repeats.exact:
        return repeats
    halves = [in_halves(probe, answer) for probe, answer in alone.items() if len(answer.tokens) > 1]
    continued = [(rest, oracle.ask_without_memo(begun)) for begun, rest in halves]
    return msgspec.structs.replace(
        repeats,
        continued=max((compare(*pair)[0] for pair in continued), default=0.0),
        rate=repeats.rate + sum((rate_of(*pair) for pair in continued), Rate()),
        nats=largest_nats([*pairs, *continued]),
        steady=steady_margin([*pairs, *continued]),
    )


def rate_of(left: Answer, right: Answer) -> Rate:
    """Return how many tokens of two answers were compared, and whether one differs."""
    differs = left.ids != right.ids
    return Rate(common_prefix(left.ids, right.ids) + differs, int(differs))


def steady_margin(pairs: Sequence[tuple[Answer, Answer]]) -> float | None:
    """Return the margin that STEADY_TOKENS repeated tokens do not exceed; None if an answer diverged, or without them.

    An engine that reports a small margin for every token, and repeats every token, has no rounding at such margins.
    """
    if any(left.ids != right.ids for left, right in pairs):
        return None
    margins = sorted(token.gap for left, _ in pairs for token in left.tokens if token.gap is not None)
    return margins[STEADY_TOKENS - 1] if len(margins) >= STEADY_TOKENS else None


def score_step(answers: Iterable[Answer]) -> float | None:
    """Return the coarsest step, in nats, of which every top-2 margin is a multiple.

    None if there is none, or if fewer than STEADY_TOKENS margins, or fewer than DIFFERENT_MARGINS values, are known.
    """
    margins = [token.gap for answer in answers for token in answer.tokens if token.gap is not None]
    if len(margins) < STEADY_TOKENS or len(set(margins)) < DIFFERENT_MARGINS:
        return None
    steps = (2.0**-power for power in range(COARSEST_STEP, FINEST_STEP + 1))
    return next((step for step in steps if all(is_multiple(margin, step) for margin in margins)), None)


def is_multiple(margin: float, step: float) -> bool:
    """Return whether a margin is a multiple of a step, up to the digits of a reported score."""
    return math.isfinite(margin) and abs(margin - step * round(margin / step)) <= ON_STEP_NATS


def largest_nats(pairs: Iterable[tuple[Answer, Answer]]) -> float | None:
    """Return the largest difference of a score that both sides reported; None if there is no such score."""
    return max((nats for pair in pairs for nats in score_differences(*pair)[0]), default=None)


def timed(again: Iterable[T], wall: Callable[[], float]) -> tuple[list[T], float]:
    """Return what each answer that is sent again came to, and the median of the seconds that one took.

    The first answers are not timed: they wait for what an engine does once.
    """
    found, moments = [], [wall()]
    for one in again:
        found.append(one)
        moments.append(wall())
    return found, statistics.median(after - before for before, after in itertools.pairwise(moments))


def in_halves(probe: Question, answer: Answer) -> tuple[Question, Answer]:
    """Return a question that ends with the first half of an answer, and the other half."""
    half = len(answer.tokens) // 2
    begun = msgspec.structs.replace(
        probe, prompt=(*probe.prompt, *answer.ids[:half]), max_tokens=len(answer.tokens) - half
    )
    return begun, Answer(answer.tokens[half:])


def compare(left: Answer, right: Answer) -> tuple[float, bool]:
    """Return (largest difference in nats, whether all tokens agree).

    At the first token that differs, each side's top-2 margin counts as noise too, because noise has exceeded it. A
    margin that the engine does not report counts as infinite.
    """
    differences, gaps = score_differences(left, right)
    differences += [math.inf if gap is None else gap for gap in gaps]
    return max(differences, default=0.0), left.ids == right.ids


def score_differences(left: Answer, right: Answer) -> tuple[list[float], list[float | None]]:
    """Return the differences of logprobs up to the first token that differs, and the top-2 margins at that token."""
    shared = common_prefix(left.ids, right.ids)
    differences = [
        abs(a.logprob - b.logprob)
        for a, b in zip(left.tokens[:shared], right.tokens[:shared], strict=True)
        if a.logprob is not None and b.logprob is not None and math.isfinite(a.logprob - b.logprob)
    ]
    differing = left.ids != right.ids
    return differences, [one.tokens[shared].gap for one in (left, right) if differing and shared < len(one.tokens)]
