"""Turns a minimal counterexample into a case: the data that `coldproof replay` runs and that reports show."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from coldproof.adapters.protocol.engine import Engine
from coldproof.adapters.protocol.metrics import COUNTERS
from coldproof.harness.case.replay_command import replay_command
from coldproof.harness.case.rows.changes import change_rows, queue_rows
from coldproof.harness.case.rows.requests import request_rows, step_rows, token_rows
from coldproof.harness.case.rows.vectors import vector_row
from coldproof.harness.case.signature import signature
from coldproof.harness.history.provenance import describe_wrong_reads
from coldproof.harness.history.records import History
from coldproof.harness.judgement.finding import Rule
from coldproof.harness.judgement.judge import Judgement
from coldproof.harness.judgement.oracle import comparable_outcomes
from coldproof.harness.judgement.requirement import Requirement
from coldproof.harness.options import Options
from coldproof.harness.schema.case import Case, Reproduction
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.workload.steps import adapter_changes


def make_case(
    *,
    requirement: Requirement,
    cell: str,
    layer: str = "",
    judgement: Judgement,
    failure_class: FailureClass,
    reproduction: Reproduction,
    engine: Engine,
    oracle: str,
    rule: Rule,
    recipes: dict[str, dict[str, Any]],
    options: Options,
    history_dependent: bool,
    log_tail: str,
    mixtures: Sequence[str] = (),
) -> Case:
    """Return the case for the judgement of the smallest failing run, on a fresh engine if it failed there.

    `layer`: in a run of several, the layer that found it; else "". `mixtures`: of models in a batch that may be the
    cause. `options`: those of the run.
    """
    history, finding = judgement.history, judgement.worst()
    used = {step.content for step in adapter_changes(history.workload)}
    raw = msgspec.json.encode(history.workload)
    sign = signature(history, failure_class, finding.request)
    case_id = f"{requirement.id}-{hashlib.sha256(raw + layer.encode() + cell.encode() + sign.encode()).hexdigest()[:8]}"
    failing = next((o for o in comparable_outcomes(history) if o.request == finding.request), None)
    return Case(
        id=case_id,
        requirement=requirement.id,
        cell=cell,
        layer=layer,
        failure_class=failure_class,
        sentence=finding.sentence,
        signature=sign,
        engine=engine.name,
        engine_version=engine.version,
        oracle=oracle,
        rule=str(rule),
        nonce=history.nonce,
        workload=msgspec.to_builtins(history.workload),
        recipes={name: recipe for name, recipe in recipes.items() if name in used},
        contents={name: digest for name, digest in history.contents.items() if name in used},
        engine_config=dict(engine.config),
        failing_request=finding.request,
        first_difference=finding.position,
        steps=step_rows(history),
        requests=request_rows(judgement),
        tokens=token_rows(failing, judgement.answers, finding) if failing is not None else [],
        findings=[f.sentence for f in judgement.findings],
        reproduction=reproduction,
        history_dependent=history_dependent,
        replay=replay_command(f"{options.report_dir}/cases/{case_id}.json", layer, oracle, engine.config, options),
        log_tail=log_tail,
        provenance=list(describe_wrong_reads(history, finding.request)),
        counters=counters(history),
        changes=change_rows(history),
        queue=queue_rows(history),
        block_size=history.shape.block_size,
        noise_nats=None if rule.exact else rule.noise,
        band=rule.band,
        vector=vector_row(failing, judgement.answers, rule) if failing is not None else None,
        mixtures=list(mixtures),
    )


def counters(history: History) -> dict[str, float]:
    """Return the increase of each published counter over the workload."""
    if not history.steps:
        return {}
    grown = history.steps[-1].after.since(history.steps[0].before)
    return {name: float(value) for name in COUNTERS if (value := getattr(grown, name)) is not None}
