"""Turns a minimal counterexample into a case: the file that is replayed and that a report is drawn from."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec

from adapters.base import COUNTED, Engine
from harness.case_changes import change_rows, queue_rows
from harness.case_rows import in_names, request_rows, step_rows, token_rows
from harness.checkers.finding import Rule
from harness.checkers.hashes import computed
from harness.evidence import same_path_reloads
from harness.history import History
from harness.judge import Judgement
from harness.options import UsageError
from harness.oracle.base import judged
from harness.oracle.other import is_across
from harness.provenance import sentences, whereabouts
from harness.reduction import is_valid
from harness.requirement import Requirement
from harness.workload import Burst, RestoreState, Route, SetAdapter, Workload, changes
from reports.schema import SCHEMA_VERSION, Case, FailureClass, Reproduction, read_case


def make_case(
    *,
    requirement: Requirement,
    cell: str,
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
) -> Case:
    """A case from the judgement of its smallest (and, where it reproduced, freshest) failing run."""
    history, finding = judgement.history, judgement.worst()
    used = {step.content for step in changes(history.workload)}
    raw = msgspec.json.encode(history.workload)
    sign = signature(history, failure_class, finding.request)
    case_id = f"{requirement.id}-{hashlib.sha256(raw + cell.encode() + sign.encode()).hexdigest()[:8]}"
    failing = next((o for o in judged(history) if o.request == finding.request), None)
    return Case(
        id=case_id,
        requirement=requirement.id,
        cell=cell,
        failure_class=failure_class,
        sentence=in_names(finding.sentence, history),
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
        findings=[in_names(f.sentence, history) for f in judgement.findings],
        reproduction=reproduction,
        history_dependent=history_dependent,
        replay=f"python -m pytest suites --replay {report_dir}/cases/{case_id}.json{chosen(oracle)}",
        log_tail=log_tail,
        provenance=[in_names(words, history) for words in sentences(history, finding.request)],
        counters=counters(history),
        changes=change_rows(history),
        queue=queue_rows(history),
        block_size=history.shape.block_size,
        noise_nats=None if rule.exact else rule.noise,
        band=rule.band,
    )


def chosen(oracle: str) -> str:
    """The option without which a replay would not find what another engine's answers showed; without its version."""
    return f" --oracle {oracle.split()[0]}" if is_across(oracle) else ""


def counters(history: History) -> dict[str, float]:
    """How much the engine's counters grew over the workload, of those that it publishes."""
    if not history.steps:
        return {}
    grown = history.steps[-1].after.since(history.steps[0].before)
    return {name: float(value) for name in COUNTED if (value := getattr(grown, name)) is not None}


def signature(history: History, failure_class: FailureClass, about: int | None = None) -> str:
    """What a waiver matches: class; routes of change; whether a path held other files before; when; what else happened;
    of the request that failed, whether a change fell into its own life, and where it read wrong KV.
    """
    changed = [change for change in changes(history.workload) if change.route is not Route.LOAD]
    routes = " and ".join(sorted({change.route.value for change in changed})) or "no reload"
    path = "same path" if same_path_reloads(history) else "other path"
    busy = any(
        isinstance(step, Burst) and step.meanwhile is not None and isinstance(step.meanwhile.change, SetAdapter)
        for step in history.workload.steps
    )
    moment = "under traffic" if busy else "between requests"
    more = "".join(f"; {feature}" for feature in features(history))
    if failure_class is FailureClass.API and only_adapters_hashes(history):
        more += "; only adapters' hashes"
    if any(outcome.request == about and outcome.overlapped for outcome in history.outcomes):
        more += "; in the change itself"
    elif failure_class is FailureClass.CORRUPT and whereabouts(history, about):
        more += f"; {whereabouts(history, about)}"
    if not changed:
        return f"{failure_class.value}; no reload{more}"
    return f"{failure_class.value}; {routes}; {path}; {moment}{more}"


def only_adapters_hashes(history: History) -> bool:
    """Whether published hashes do not follow from their events, and all of these are of adapters' blocks."""
    wrong = [one.block for one in computed(history) if not one.agrees]
    return bool(wrong) and all(block.lora_name is not None for block in wrong)


def features(history: History) -> list[str]:
    """What else happened in a history that a cache may trip over."""
    asked = [request for _, _, request in history.workload.requests()]
    happened = {
        "preempted": bool(history.steps) and bool(history.steps[-1].after.preemptions),
        "reset": bool(history.resets),
        "restored": any(isinstance(step, RestoreState) for step in history.workload.steps),
        "aborted": any(request.abort for request in asked),
        "chat": any(request.chat for request in asked),
        "priorities": any(request.priority for request in asked),
        "several answers": any(request.surface.answers > 1 for request in asked),
        "prompt logprobs": any(request.surface.prompt_logprobs for request in asked),
        "stop string": any(request.surface.stop for request in asked),
        "structured output": any(request.surface.pattern for request in asked),
    }
    return [name for name, true in happened.items() if true]


def load_case(path: Path) -> tuple[Case, Workload]:
    """Read a case and its workload. Raises UsageError saying what is wrong with the file."""
    try:
        case = read_case(path)
        workload = msgspec.convert(case.workload, Workload)
    except OSError as problem:
        raise UsageError(f"cannot read the case {path}: {problem.strerror}") from problem
    except msgspec.MsgspecError as problem:
        raise UsageError(f"{path} is no case file of this version: {problem}") from problem
    if case.schema_version != SCHEMA_VERSION:
        raise UsageError(f"{path} has schema version {case.schema_version}; this version reads {SCHEMA_VERSION}")
    used = changes(workload)
    if not is_valid(workload) or not all(change.content in case.contents for change in used):
        raise UsageError(f"{path} holds a workload that cannot be run: was it edited by hand?")
    if not all(stays_inside(change.path) for change in used):
        raise UsageError(f"{path} wants adapter files outside its own folder: it is not a case of ours")
    return case, workload


def stays_inside(path: str) -> bool:
    """Whether a symbolic path leads nowhere but into the folder that it is put behind."""
    return path.isprintable() and all(part and ".." not in part and part != "." for part in path.split("/"))
