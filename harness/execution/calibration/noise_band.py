"""Measures the noise of an engine's scores without any cache: the tolerance for judging warm answers.

It is used only if the probes of the calibration do not repeat exactly. Many prompts are answered alone and in batches
of two sizes, with lengths around block boundaries and up to a thousand tokens. Each answer is then judged as a warm one
will be: one prefill of prompt and answer scores tokens that decode computed one by one. No two ways to split a prompt
into chunks differ more than these two. The shortest prompts have long answers, because noise can grow with an answer:
with KV in 8 bits its median doubled over 64 tokens (OpenVINO GenAI).
"""

from __future__ import annotations

import enum
import itertools
import math
import secrets
from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.requests import Token
from coldproof.harness.execution.calibration.pareto_tail import ParetoTail, fit_tail, quantile
from coldproof.harness.execution.calibration.progress import SILENT, Progress
from coldproof.harness.execution.calibration.repeats import Repeats, rate_of, repeats_of
from coldproof.harness.execution.oracles.cross_engine import room
from coldproof.harness.execution.oracles.engine import EngineOracle
from coldproof.harness.history.records import common_prefix
from coldproof.harness.judgement.checkers.noise_tolerance import places
from coldproof.harness.judgement.oracle import SCORED, Answer, Question
from coldproof.harness.schema.case import NoiseBand
from coldproof.harness.schema.divergences import Rate
from coldproof.harness.workload.steps import Segment
from coldproof.harness.workload.tokens import segment_tokens

PROMPTS, TOKENS, LONGEST = 48, 24, 1024
# Prompts of an identity, and of all together: with them there are a thousand scores and margins for the tolerance. A
# model without adapters has one identity.
LEAST_EACH, LEAST = 6, 12
BATCHES = (4, 16)
WAYS = 1 + len(BATCHES)  # each prompt is answered alone and in batches
# One false positive in a million requests: none is expected in a qualification of a hundred thousand requests.
ERROR_RATE = 1e-6
LONGEST_ANSWER = 64  # tokens of an answer, each of which may exceed the tolerance
COMPARISONS = 3  # for each token: its score, its margin, its score as a prompt token
# The largest tolerance of a score, in nats. Blocks of other tokens moved the scores of a trained model by 3.5 to 9
# nats: where cold answers differ as much, a tolerance would permit wrong ones. It is then no noise but a defect that
# the calibration meets without any cache.
LARGEST = 4.0
NEEDED = (Capability.LOGPROBS, Capability.PROMPT_LOGPROBS)
Law = TypeVar("Law", NoiseBand, ParetoTail)


class Scoring(enum.Enum):
    """How the cold engine is asked for the scores of an answer: alone and in a batch, only alone, or not at all."""

    BOTH = "in batches"
    ALONE = "alone"
    NONE = "not at all"


class Pace(msgspec.Struct, frozen=True):
    """How long a short cold answer takes, and the seconds that a part of the calibration should take at most."""

    latency: float
    seconds: float = math.inf

    def most(self, wanted: int, *, latencies: float, least: int = 1) -> int:
        """Return how many of `wanted` units to measure. `latencies`: the time of one unit, in short cold answers."""
        cost = latencies * self.latency
        return wanted if cost == 0 else max(least, min(wanted, int(min(self.seconds / cost, wanted))))


FAST = Pace(0.0)


class Samples(msgspec.Struct):
    """Differences in nats between two cold computations of the same tokens, and how often the best token differs."""

    scores: list[float] = msgspec.field(default_factory=list)
    margins: list[float] = msgspec.field(default_factory=list)
    prompts: list[float] = msgspec.field(default_factory=list)
    flips: int = 0
    positions: int = 0
    answers: int = 0
    repeats: Rate = Rate()  # of the answers in batches, compared with those alone

    @property
    def rate(self) -> Rate:
        """Return how often cold computations choose another token: in batches, or in a prefill of the same tokens.

        The cause that acts more often explains more; a hit has both.
        """
        return max(self.repeats, Rate(self.positions, self.flips), key=lambda rate: (rate.value, rate.tokens))


def measure_band(
    oracle: EngineOracle,
    identities: list[str | None],
    block: int,
    pace: Pace = FAST,
    scoring: Scoring = Scoring.BOTH,
    *,
    progress: Progress = SILENT,
) -> NoiseBand | str:
    """Return the tolerance, or why answers cannot be judged by scores. Raises OracleError if the oracle cannot answer.

    `block`: tokens of a block, around which prompt lengths are chosen. `pace`: a slow model answers fewer prompts.
    """
    for need in NEEDED:
        support = oracle.engine.capabilities[need]
        if support.present is not True and not (need is Capability.PROMPT_LOGPROBS and oracle.scores_directly):
            return f"the engine does not report {need.value} ({support.evidence})"
    questions = 3 * WAYS * len(identities)  # each answer is scored alone and in a batch
    each = prompts_of_each(pace, identities, questions)

    def measured() -> Samples:
        with progress.counting("measuring the noise of cold answers", oracle, of=questions * each):
            return sampled(oracle, identities, block, each, scoring)

    return fitted(measured, band_of, small=each < all_of_each(identities))


def measure_margin(
    oracle: EngineOracle, identities: list[str | None], block: int, pace: Pace, *, progress: Progress
) -> float | str:
    """Return the tolerance for top-2 margins alone, or why there is none, for an engine that scores no prompts.

    It compares decode alone with decode in batches. Raises OracleError if the oracle cannot answer.
    """
    questions = WAYS * len(identities)
    each = prompts_of_each(pace, identities, questions)

    def measured() -> Samples:
        with progress.counting("measuring the noise of cold answers", oracle, of=questions * each):
            return sampled(oracle, identities, block, each, Scoring.NONE)

    tail = fitted(measured, lambda found: fit_tail(found.margins), small=each < all_of_each(identities))
    return rounded_up(tail.beyond(ERROR_RATE / LONGEST_ANSWER)) if isinstance(tail, ParetoTail) else tail


def fitted(measured: Callable[[], Samples], fit: Callable[[Samples], Law | str], *, small: bool) -> Law | str:
    """Return what fits a sample, or why nothing does; a `small` sample is doubled first.

    A slow model's sample has some forty values in its tail: by chance, they may look as if they had no bound.
    """
    found = measured()
    law = fit(found)
    return fit(together(found, measured())) if small and isinstance(law, str) else law


def together(one: Samples, other: Samples) -> Samples:
    """Return both samples as one."""
    return Samples(**{name: getattr(one, name) + getattr(other, name) for name in Samples.__struct_fields__})


def all_of_each(identities: list[str | None]) -> int:
    """Return how many prompts a fast model answers for each identity."""
    return -(-PROMPTS // len(identities))


def prompts_of_each(pace: Pace, identities: list[str | None], questions: int) -> int:
    """Return how many prompts to send for each identity, if one prompt for all of them needs so many questions.

    Prompts and answers are longer here than in the calibration's first part, whose answers took `pace.latency`.
    """
    least = max(LEAST_EACH, -(-LEAST // len(identities)))
    return pace.most(all_of_each(identities), latencies=2 * questions, least=least)


def measure_repeats(
    oracle: EngineOracle, identities: list[str | None], block: int, pace: Pace, *, progress: Progress
) -> Repeats:
    """Return how well the same prompts' answers repeat: in batches, and where half of one is continued.

    All of this is generated: an engine's scores of a prompt that it is given are a statement, which nothing repeats.
    Raises OracleError if the oracle cannot answer.
    """
    each = prompts_of_each(pace, identities, (WAYS + 1) * len(identities))
    alone: dict[Question, Answer] = {}
    pairs: list[tuple[Answer, Answer]] = []
    with progress.counting("repeating cold answers", oracle, of=(WAYS + 1) * each * len(identities)):
        for questions in drawn_questions(oracle, identities, block, each):
            alone |= {question: oracle.ask_without_memo(question) for question in questions}
            for size in BATCHES:
                for batch in in_batches(questions, size):
                    answers = oracle.ask_together(batch)
                    pairs += [(alone[asked], one) for asked, one in zip(batch, answers, strict=True)]
        return repeats_of(oracle, alone, pairs)


def drawn_questions(
    oracle: EngineOracle, identities: list[str | None], block: int, each: int
) -> Iterator[list[Question]]:
    """Yield `each` prompts of every identity, which nobody has sent before."""
    run = secrets.token_hex(4)
    lengths = shapes(block, room(oracle.engine) - 1, slow=each <= LEAST)
    for number, identity in enumerate(identities):
        yield [
            Question(segment_tokens(run, Segment(f"noise {number}.{i}", length)), identity, tokens)
            for i, (length, tokens) in zip(range(each), itertools.cycle(lengths), strict=False)
        ]


def sampled(
    oracle: EngineOracle, identities: list[str | None], block: int, each: int, scoring: Scoring = Scoring.BOTH
) -> Samples:
    """Send `each` prompts of every identity. The requests of a batch have one identity; GROUND-1 tests mixtures."""
    found = Samples()
    for questions in drawn_questions(oracle, identities, block, each):
        drawn = [[oracle.ask_without_memo(question) for question in questions]]
        for size in BATCHES:
            drawn.append([answer for batch in in_batches(questions, size) for answer in oracle.ask_together(batch)])
        for answers in drawn if scoring is not Scoring.NONE else ():
            add_differences(oracle, questions, answers, found, scoring)
        for one, other in itertools.combinations(drawn, 2):
            for mine, yours in zip(one, other, strict=True):
                found.margins += margin_differences(mine.tokens, yours.tokens)
        found.repeats += sum(
            (rate_of(*pair) for many in drawn[1:] for pair in zip(drawn[0], many, strict=True)), Rate()
        )
    return found


def shapes(block: int, room: int, *, slow: bool) -> list[tuple[int, int]]:
    """Return the lengths of prompts and of their answers, which fit into `room` together."""
    longest = [] if slow else [LONGEST]  # a slow model answers four of the other prompts in the same time
    shortest, *others = (
        min(length, room - TOKENS) for length in (block - 1, 2 * block, 4 * block + 1, 9 * block, *longest)
    )
    return [(shortest, min(LONGEST_ANSWER, room - shortest)), *((length, TOKENS) for length in others)]


def add_differences(
    oracle: EngineOracle, questions: list[Question], answers: list[Answer], found: Samples, scoring: Scoring
) -> None:
    """Let the oracle score each answer's tokens alone and in a batch, and add the differences to `found`.

    If it is asked only alone, the second scores are those of the prompt without the answer.
    """
    forced = [
        Question((*question.prompt, *answer.ids), question.adapter, 1, SCORED)
        for question, answer in zip(questions, answers, strict=True)
    ]
    alone = [oracle.ask_without_memo(question) for question in forced]
    if scoring is Scoring.BOTH:
        beside = [a for batch in in_batches(forced, BATCHES[0]) for a in oracle.ask_together(batch)]
    else:
        beside = [oracle.ask_without_memo(Question(one.prompt, one.adapter, 1, SCORED)) for one in questions]
    for question, answer, first, second in zip(questions, answers, alone, beside, strict=True):
        found.answers += 1
        for scored in (first, second) if scoring is Scoring.BOTH else (first,):
            for place in places(answer.tokens, len(question.prompt), scored):
                found.positions += 1
                found.flips += place.flipped
                found.scores += [] if place.score is None else [place.score]
                found.margins += [place.margin] if place.margin else []
        length = len(question.prompt)
        found.prompts += list(score_differences(first.prompt_logprobs or (), second.prompt_logprobs or (), length))


def score_differences(mine: tuple[float | None, ...], other: tuple[float | None, ...], length: int) -> Iterator[float]:
    """Yield the differences between two scores of each prompt token."""
    for a, b in zip(mine[:length], other[:length], strict=True):
        if a is not None and b is not None:
            yield abs(a - b)


def margin_differences(mine: tuple[Token, ...], other: tuple[Token, ...]) -> list[float]:
    """Return the differences between the top-2 margins of two answers, up to the first token that differs.

    For this token, the two best tokens have swapped, so the difference is the sum of both margins.
    """
    shared = common_prefix(tuple(t.id for t in mine), tuple(t.id for t in other))
    pairs = list(zip(mine, other, strict=False))
    found = [abs(a.gap - b.gap) for a, b in pairs[:shared] if a.gap is not None and b.gap is not None]
    for a, b in pairs[shared : shared + 1]:
        found += [a.gap + b.gap] if a.gap is not None and b.gap is not None else []
    return found


def band_of(found: Samples) -> NoiseBand | str:
    """Return the tolerance from the tails of the samples, or why there is none.

    An engine that reports no other tokens than those of its answer has no margins, and a slow model's answers may
    diverge so early in batches that there are few, or in steps so large that no law fits. A margin is the difference of
    two scores, so that its noise is at most twice theirs. It is not smaller either: where no margin of a sample
    differs, the next one may (vLLM in bfloat16 on a GPU: a tolerance of 0.1 nats for scores, and of 0 for margins).
    Prompts that are scored only alone may repeat exactly; in a batch or on a hit they vary like the tokens of an
    answer.
    """
    tails = [fit_tail(values) for values in (found.scores, found.prompts)]
    known = [tail for tail in tails if isinstance(tail, ParetoTail)]
    if len(known) < len(tails):
        return next(tail for tail in tails if isinstance(tail, str))
    rate = ERROR_RATE / (COMPARISONS * LONGEST_ANSWER)
    score, prompt = (rounded_up(tail.beyond(rate)) for tail in known)
    if score > LARGEST:
        much = f"a tolerance of {score:g} nats would permit wrong answers"
        return f"cold answers differ so much that {much}"
    of_margins = fit_tail(found.margins)
    measured = of_margins.beyond(rate) if isinstance(of_margins, ParetoTail) else max([2 * score, *found.margins])
    margin = max(score, measured)
    if not math.isfinite(margin):
        return str(of_margins)
    seen = found.flips + 3 + 2 * math.sqrt(found.flips)  # upper confidence bound of the number of flips
    half, most, every = (float(f"{quantile(found.scores, share):.3g}") for share in (0.5, 0.99, 1.0))
    return NoiseBand(
        score_nats=score,
        margin_nats=rounded_up(margin),
        prompt_nats=max(prompt, score),
        error_rate=ERROR_RATE,
        positions=len(found.scores),
        answers=found.answers,
        flips=round(min(1.0, seen / found.positions), 6),
        half_nats=half,
        most_nats=most,
        all_nats=every,
        repeats=found.rate,
    )


def in_batches(questions: list[Question], size: int) -> Iterator[list[Question]]:
    """Split questions into batches of `size`."""
    return (questions[start : start + size] for start in range(0, len(questions), size))


def rounded_up(nats: float) -> float:
    """Round up to three significant digits."""
    if nats == 0.0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(nats)) - 2)
    return float(f"{math.ceil(nats / unit) * unit:.6g}")
