"""Merges the facts of a fleet's runs: engine, comparison rule, times, known issues."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from coldproof.harness.fleet.merge.unit_report import Fleet, Part, with_unit_test_name
from coldproof.harness.release.bundle.merge import merge_environments, merge_values, waiver_rows
from coldproof.reports.assemble.assemble import Event, assemble, last_of
from coldproof.reports.format.text import listed, many
from coldproof.reports.schema.results import Calibration, EngineResult, SelfTestRow, Waiver


def merged_start(fleet: Fleet, begun: Sequence[Part]) -> Event:
    """Return the start event of the merged result. A verdict is allowed only if every run allows it."""
    starts = [(part, first) for part in begun if (first := part.start) is not None]
    allowed = [set(first["allowed"]) for _, first in starts]
    facts = merge_environments([(part.unit.machine.name, first) for part, first in starts])
    return {
        "version": fleet.version,
        "started": fleet.started,
        "command": fleet.command,
        "profile": merge_values((part.unit.run.label, first["profile"]) for part, first in starts) or "none",
        "seed": ", ".join(dict.fromkeys(first["seed"] for _, first in starts)) or "none",
        "shard": "",
        "fault": None,
        "environment": {**facts, **fleet.environment},
        "allowed": sorted(set.intersection(*allowed)) if allowed else [],
        "least_shown": max((n for _, first in starts if (n := first.get("least_shown")) is not None), default=None),
    }


def self_tests(begun: Sequence[Part]) -> list[dict[str, object]]:
    """Return the merged self-test. A row that failed in any unit failed."""
    rows: dict[str, SelfTestRow] = {}
    for part in begun:
        for found in msgspec.convert((last_of(part.log, "selftest") or {}).get("rows", []), list[SelfTestRow]):
            if found.planted not in rows or not found.caught:
                said = found.said if found.caught else f"{found.said} (in {part.unit.id})"
                rows[found.planted] = msgspec.structs.replace(found, said=said)
    return [msgspec.to_builtins(found) for found in rows.values()]


def engine_and_calibration(begun: Sequence[Part], end: float) -> Iterator[Event]:
    """Yield the merged engine and calibration events."""
    engines = [(part, msgspec.convert(e["engine"], EngineResult)) for part, e in events_of_kind(begun, "engine")]
    if engines:
        yield {"event": "engine", "at": end, "engine": msgspec.to_builtins(merge_engines(engines))}
    rules = [
        (part, msgspec.convert(e["calibration"], Calibration), e["seconds"])
        for part, e in events_of_kind(begun, "calibration")
    ]
    if rules:
        one = merge_calibrations([(part, rule) for part, rule, _ in rules])
        seconds = sum(seconds for *_, seconds in rules)
        yield {"event": "calibration", "at": end, "calibration": msgspec.to_builtins(one), "seconds": seconds}


def events_of_kind(begun: Sequence[Part], kind: str) -> Iterator[tuple[Part, Event]]:
    """Return every event of a kind with its unit."""
    return ((part, event) for part in begun for event in part.log if event["event"] == kind)


def merge_engines(engines: Sequence[tuple[Part, EngineResult]]) -> EngineResult:
    """Return one description of all engines. With several builds, capabilities have the run's name in front."""
    builds = list(dict.fromkeys(engine_summary(engine) for _, engine in engines))
    alone = len(builds) == 1
    first = engines[0][1]
    config: dict[str, dict[str, str]] = defaultdict(dict)
    capabilities: dict[str, dict[str, Any]] = {}
    for part, engine in engines:
        for name, value in engine.config.items():
            config[name].setdefault(part.unit.run.label, value)
        for name, facts in engine.capabilities.items():
            capabilities.setdefault(name if alone else f"{part.unit.run.label}: {name}", facts)
    return EngineResult(
        name=first.name if alone else many(len(builds), "engine"),
        version=first.version if alone else f"({', '.join(builds)})",
        adapter=listed(list(dict.fromkeys(engine.adapter for _, engine in engines))),
        worker=listed(list(dict.fromkeys(engine.worker for _, engine in engines))),
        config={name: merge_values(values.items()) for name, values in config.items()},
        capabilities=capabilities,
        weight_promise=first.weight_promise if len({engine.weight_promise for _, engine in engines}) == 1 else "",
    )


def engine_summary(engine: EngineResult) -> str:
    """Return the engine's name and version."""
    return f"{engine.name} {engine.version or '(version unknown)'}"


def merge_calibrations(rules: Sequence[tuple[Part, Calibration]]) -> Calibration:
    """Return one calibration: exact if all are exact, with the largest noise of all."""
    found = [rule for _, rule in rules]
    noise = [rule.noise_nats for rule in found if rule.noise_nats is not None]
    latency = [rule.latency_seconds for rule in found if rule.latency_seconds is not None]
    waited = [rule.answer_seconds for rule in found if rule.answer_seconds is not None]
    mixtures = dict.fromkeys(name for rule in found for name in rule.mixtures)
    return Calibration(
        oracle=merge_values((part.unit.run.label, rule.oracle) for part, rule in rules),
        rule=merge_values((part.unit.run.label, rule.rule) for part, rule in rules),
        exact=all(rule.exact for rule in found),
        noise_nats=max(noise) if noise else None,
        probes=sum(rule.probes for rule in found),
        differing=sum(rule.differing for rule in found),
        mixtures={name: all(rule.mixtures.get(name, True) for rule in found) for name in mixtures},
        notes=[
            f"{part.unit.column(rule.cell) if rule.cell else part.unit.id}: {note}"
            for part, rule in rules
            for note in rule.notes
        ],
        latency_seconds=max(latency) if latency else None,
        answer_seconds=max(waited) if waited else None,
        stall_seconds=max(rule.stall_seconds for rule in found),
    )


def merged_timing(begun: Sequence[Part], end: float) -> Iterator[Event]:
    """Yield the merged time measurement. Rates relate to the wall time of the fleet, with several engines at once."""
    rows = [event for _, event in events_of_kind(begun, "measured")]
    suites = sum(row["suite_seconds"] for row in rows)
    if not suites:
        return
    wall = covered_seconds((part.record.began, part.finish) for part in begun if part.record is not None)
    yield {
        "event": "measured",
        "at": end,
        "suite_seconds": round(wall, 3),
        "busy_seconds": round(wall * sum(row["busy_seconds"] for row in rows) / suites, 3),
        "engine_starts": [seconds for row in rows for seconds in row["engine_starts"]],
    }


def covered_seconds(spans: Iterable[tuple[float, float]]) -> float:
    """Return the seconds during which at least one of these spans lasted."""
    total, until = 0.0, 0.0
    for began, ended in sorted(spans):
        total += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return total


def known_issue_rows(begun: Sequence[Part]) -> list[dict[str, object]]:
    """Return every known issue with its state over all units that used it."""
    by_run: dict[str, list[Part]] = defaultdict(list)
    for part in begun:
        by_run[part.unit.run.label].append(part)
    rows: list[Waiver] = []
    for parts in by_run.values():
        logs = [[with_unit_test_name(event, part.unit) for event in part.log] for part in parts]
        verdicts = assemble([event for log in logs for event in log]).requirements
        rows += msgspec.convert(waiver_rows(logs, verdicts), list[Waiver])
    merged: dict[tuple[object, ...], Waiver] = {}
    for given in rows:  # a case that two seeds found is one use
        row = msgspec.structs.replace(given, cases=list(dict.fromkeys(given.cases)))
        key = (row.requirement, row.cell, row.signature, row.fingerprint, row.versions)
        merged[key] = merge_waivers(merged[key], row) if key in merged else row
    return [msgspec.to_builtins(row) for row in merged.values()]


def merge_waivers(one: Waiver, other: Waiver) -> Waiver:
    """Merge a known issue of two runs. It is used if either used it; else it has their common state."""
    cases = list(dict.fromkeys([*one.cases, *other.cases]))
    state = "used" if cases else one.state if one.state == other.state else "not exercised"
    return msgspec.structs.replace(one, cases=cases, state=state)
