"""Bounds the workloads of a cell: by the engine's sizes, and by what a request costs on a slow model.

A trained model on a CPU is hundreds of times slower than the generated one. With workloads of the usual size, a run
would spend its whole time on a few requirements.
"""

from __future__ import annotations

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.harness.execution.engines.cell_engines import CellEngines
from coldproof.harness.workload.generators.prompts import DEFAULT_BLOCK, WorkloadLimits
from coldproof.harness.workload.steps import START_WEIGHTS

SLOW_SECONDS = 0.3  # for a short cold answer: faster engines get workloads of the usual size
# Short cold answers that a trial needs time for: about five workloads of the usual size, each warm and cold.
ANSWERS_OF_A_TRIAL = 120
SMALLEST_SCALE = 0.01


def workload_scale(answer_seconds: float | None, trial_seconds: float) -> float:
    """Return how large workloads may be, as a part of the usual size.

    `answer_seconds`: of a short cold answer, as the calibration measured it. `trial_seconds`: of a trial's share of the
    budget.
    """
    if answer_seconds is None or answer_seconds < SLOW_SECONDS:
        return 1.0
    return round(max(SMALLEST_SCALE, min(1.0, trial_seconds / (answer_seconds * ANSWERS_OF_A_TRIAL))), 2)


def scale_note(limits: WorkloadLimits, answer_seconds: float | None, trial_seconds: float) -> str:
    """Return what was made smaller and why; "" if nothing was."""
    if not limits.slow:
        return ""
    blocks = max(limits.sizes((2, 3, 5, 8)))
    return (
        f"A short cold answer takes {answer_seconds or 0:.2g} s, and a trial has {trial_seconds:.2g} s of the budget. "
        f"So workloads are drawn at {limits.scale:.0%} of their usual size: first segments of at most {blocks} blocks "
        f"in place of 8, around block boundaries as always; at most {limits.most(4, least=1)} more turns or requests "
        "in place of 4; shorter answers. A larger --budget gives larger workloads."
    )


def workload_limits(engines: CellEngines, *, trial_seconds: float) -> WorkloadLimits:
    """Return the bounds of the workloads that generators draw in a cell."""
    shape, calibration = engines.engine.shape, engines.calibration
    return WorkloadLimits(
        block=shape.block_size or DEFAULT_BLOCK,
        slots=shape.adapter_slots or 1,
        contents=tuple(engines.contents) or ("A",),
        longest=shape.max_model_tokens,
        mixtures=frozenset(m for m, holds in calibration.mixtures.items() if holds),
        pool=shape.pool_blocks * shape.block_size if shape.pool_blocks and shape.block_size else None,
        groups=max(1, len(shape.groups)),
        requests=shape.most_requests,
        most_tokens=engines.pool.profile.tokens,
        can=frozenset(c for c in Capability if engines.can(c)),
        scale=workload_scale(calibration.answer_seconds, trial_seconds),
        ranks=shape.ranks if engines.can(Capability.RANK_CHOICE) else 1,
        image_tokens=shape.image.tokens if shape.image is not None else None,
        versions=tuple(name for name in engines.versions if name != START_WEIGHTS),
        policy=engines.promise.policy,
        changes=engines.pool.changes(),
        step=shape.step_tokens,
        rare=engines.pool.options.fingerprint,
        varied=engines.pool.options.fingerprint,
    )


def pool_hint(limits: WorkloadLimits) -> str:
    """Return advice on how to fill the KV pool, if no workload here can fill it; empty otherwise."""
    if limits.small_pool is not None:
        return ""
    size = "The size of the KV pool is unknown" if limits.pool is None else f"The KV pool has {limits.pool} tokens"
    return (
        f"{size}. A workload must have twice that size, and has at most {limits.most_tokens} tokens here: use a "
        "smaller pool (vLLM: --num-gpu-blocks-override, SGLang: --max-total-tokens) or a larger profile."
    )
