"""Calibrates an engine that pools: by how much the same vectors differ, alone, alone again and in batches."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence

import msgspec

from coldproof.adapters.protocol.engine import Engine
from coldproof.adapters.protocol.pooling import TASK_CAPABILITIES, Task
from coldproof.adapters.protocol.requests import ResponseOptions
from coldproof.harness.execution.calibration.calibrate import insensitivity_notes, lengths, notes, stall_after
from coldproof.harness.execution.calibration.progress import SILENT, Progress
from coldproof.harness.execution.calibration.repeats import timed
from coldproof.harness.execution.calibration.sensitivity import measure_sensitivity
from coldproof.harness.execution.oracles.engine import EngineOracle
from coldproof.harness.judgement.finding import Rule
from coldproof.harness.judgement.oracle import Answers, OracleError, Question
from coldproof.harness.judgement.vectors import ROUNDING, deviation, is_alike
from coldproof.harness.schema.cold_answers import ColdAnswers
from coldproof.harness.schema.results import Calibration
from coldproof.harness.workload.generators.prompts import (
    ADAPTERS_TOGETHER,
    BASE_WITH_ADAPTER,
    DEFAULT_BLOCK,
    whole_unit,
)
from coldproof.harness.workload.steps import Segment
from coldproof.harness.workload.tokens import segment_tokens

TIMES = 10  # the tolerance is so many times what cold answers differ by: a hit ends chunks at places not measured here
ROUNDS = 3  # batches: where a chunk ends depends on the requests beside it


def tasks_of(engine: Engine) -> tuple[Task, ...]:
    """Return the pooling tasks of an engine; none for one that generates tokens."""
    return tuple(task for task, needed in TASK_CAPABILITIES.items() if engine.capabilities[needed].present is True)


def calibrate_pooled(
    oracle: EngineOracle,
    digests: Sequence[str],
    tasks: Sequence[Task],
    *,
    cell: str,
    block: int | None,
    slots: int = 1,
    progress: Progress = SILENT,
) -> tuple[Calibration, Rule]:
    """Ask for the vectors of some prompts and return the calibration and the rule. Raises OracleError.

    `digests`: of the adapters' contents. `slots`: those of the engine, all of which are used for mixtures.
    """
    run, unit = secrets.token_hex(4), whole_unit(block or DEFAULT_BLOCK)
    identities: list[str | None] = [None, *digests[:2]]
    prompts = [segment_tokens(run, Segment(f"calibration {i}", length)) for i, length in enumerate(lengths(unit))]
    options = [ResponseOptions(pooled=task) for task in tasks]
    probes = [
        Question(prompt, identity, 0, response_options)
        for identity in identities
        for response_options in options
        for prompt in prompts
    ]
    batches = [[probe for probe in probes if probe.adapter == identity] for identity in identities]
    with progress.counting("calibrating", oracle, of=(2 + ROUNDS) * len(probes)):
        began = oracle.engine.clock()
        alone = {probe: oracle.ask_without_memo(probe) for probe in probes}
        latency = (oracle.engine.clock() - began) / len(probes)
        apart, waited = timed((difference(alone, [probe], oracle) for probe in probes), time.monotonic)
        apart += [difference(alone, batch[turn:] + batch[:turn], oracle) for batch in batches for turn in range(ROUNDS)]
        mixtures = {ADAPTERS_TOGETHER: 0.0, BASE_WITH_ADAPTER: 0.0}
        if digests:
            oracle.fill_slots(slots)
            mixed = [one for together in zip(*reversed(batches), strict=True) for one in together]
            adapters = [one for one in mixed if one.adapter is not None]
            mixtures = {
                name: max(difference(alone, together[turn:] + together[:turn], oracle) for turn in range(ROUNDS))
                for name, together in ((ADAPTERS_TOGETHER, adapters), (BASE_WITH_ADAPTER, mixed))
            }
    noise = max(apart)
    rule = Rule(exact=noise == 0, pooled=max(ROUNDING, TIMES * noise))
    measured = measure_sensitivity(oracle, identities, unit, rule, Question((), None, 0, options[0]), progress=progress)
    cold = ColdAnswers(sensitivity=measured)
    rule = msgspec.structs.replace(rule, cold=cold)
    holds = {name: distance <= (rule.pooled or 0) for name, distance in mixtures.items()}
    calibration = Calibration(
        cell=cell,
        oracle=oracle.name,
        rule=str(rule),
        exact=rule.exact,
        noise_nats=None,
        pooled=rule.pooled,
        probes=(2 + ROUNDS) * len(probes),
        differing=sum(distance > 0 for distance in apart),
        mixtures=holds,
        cold=cold,
        notes=[
            f"Values of cold vectors differ by at most {noise:.3g}, alone and in batches.",
            *insensitivity_notes(cold),
            *notes(oracle, holds),
        ],
        latency_seconds=round(latency, 4),
        answer_seconds=round(waited, 4),
        stall_seconds=stall_after(latency),
    )
    return calibration, rule


def difference(alone: Answers, asked: list[Question], oracle: EngineOracle) -> float:
    """Return the largest difference of a value between answers of a batch and those alone. Raises OracleError."""
    answers = oracle.ask_together(asked)
    largest = 0.0
    for question, answer in zip(asked, answers, strict=True):
        first, again = alone[question].pooled, answer.pooled
        if not first or not again or not is_alike(first, again):
            raise OracleError(f"the {oracle.name} oracle gave no vectors, or other ones, to {question.options}")
        largest = max(largest, deviation(first, again).largest)
    return largest
