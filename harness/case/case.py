"""Turns a minimal counterexample into a case: the data that `coldproof replay` runs and that reports show."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from coldproof.adapters.protocol.engine import Engine
from coldproof.adapters.protocol.metrics import COUNTERS
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
from coldproof.harness.option_table import option_words
from coldproof.harness.options import FINGERPRINT, is_other_engine
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
    report_dir: Path,
    history_dependent: bool,
    log_tail: str,
    mixtures: Sequence[str] = (),
    repairs: Sequence[str] = (),
) -> Case:
    """Return the case for the judgement of the smallest failing run, on a fresh engine if it failed there.

    `layer`: in a run of several, the layer that found it; else "". `mixtures`: of models in a batch that may be the
    cause. `repairs`: the names of those that were planted into the engine.
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
        replay=shlex.join(
            [
                *("coldproof", "replay", f"{report_dir}/cases/{case_id}.json"),
                *replay_options(layer, oracle, engine.config),
                *option_words(repairs=tuple(repairs)),
            ]
        ),
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


def replay_options(layer: str, oracle: str, config: Mapping[str, str]) -> list[str]:
    """Return the options that a replay needs: the layer or worker of the case, and its oracle if that is an engine.

    `layer`: "" in a run of one. `config`: the engine's configuration.
    """
    exact = not layer and worker_of(config) == FINGERPRINT
    other = is_other_engine(oracle)
    return option_words(layers=layer, worker=exact and FINGERPRINT, oracle=other and oracle.split()[0])


def worker_of(config: Mapping[str, str]) -> str:
    """Return the --worker of a run by the configuration of its engine, which names the class."""
    return FINGERPRINT if "FingerprintWorker" in "".join(config.values()) else "model"


def counters(history: History) -> dict[str, float]:
    """Return the increase of each published counter over the workload."""
    if not history.steps:
        return {}
    grown = history.steps[-1].after.since(history.steps[0].before)
    return {name: float(value) for name in COUNTERS if (value := getattr(grown, name)) is not None}
