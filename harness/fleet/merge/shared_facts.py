"""Merges the facts of a fleet's runs: engine, comparison rule, times, known issues."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from coldproof.harness.fleet.merge.unit_report import Fleet, Part
from coldproof.harness.release.run.merged import Member, merged_environments, merged_values
from coldproof.harness.schema.results import Calibration, EngineResult, SelfTestRow
from coldproof.reports.assemble.assemble import Event, last_of
from coldproof.reports.format.text import listed, many


def merged_start(fleet: Fleet, begun: Sequence[Part], units: Sequence[Member]) -> Event:
    """Return the start event of the merged result. A verdict is allowed only if every run allows it."""
    starts = [unit.start for unit in units]
    profiles = zip((part.unit.run.label for part in begun), (start["profile"] for start in starts), strict=True)
    allowed = [set(start["allowed"]) for start in starts]
    return {
        "version": fleet.version,
        "started": fleet.started,
        "command": fleet.command,
        "profile": merged_values(profiles) or "none",
        "seed": ", ".join(dict.fromkeys(start["seed"] for start in starts)) or "none",
        "shard": "",
        "fault": None,
        "repairs": [],
        "environment": {**merged_environments(units), **fleet.environment},
        "allowed": sorted(set.intersection(*allowed)) if allowed else [],
        "least_shown": max((n for start in starts if (n := start.get("least_shown")) is not None), default=None),
    }


def shared_events(begun: Sequence[Part]) -> Iterator[Event]:
    """Yield the events that the merged result has one of: self-test, engine, calibration and measurement."""
    if rows := self_tests(begun):
        yield {"event": "selftest", "rows": rows}
    engines = [(part, msgspec.convert(e["engine"], EngineResult)) for part, e in events_of_kind(begun, "engine")]
    if engines:
        yield {"event": "engine", "engine": msgspec.to_builtins(merge_engines(engines))}
    rules = [(part, msgspec.convert(e["calibration"], Calibration)) for part, e in events_of_kind(begun, "calibration")]
    if rules:
        seconds = sum(event["seconds"] for _, event in events_of_kind(begun, "calibration"))
        one = msgspec.to_builtins(merge_calibrations(rules))
        yield {"event": "calibration", "calibration": one, "seconds": seconds}
    yield from merged_timing(begun)


def self_tests(begun: Sequence[Part]) -> list[dict[str, object]]:
    """Return the merged self-test. A row that failed in any unit failed."""
    rows: dict[str, SelfTestRow] = {}
    for part in begun:
        for found in msgspec.convert((last_of(part.log, "selftest") or {}).get("rows", []), list[SelfTestRow]):
            if found.planted not in rows or not found.caught:
                said = found.said if found.caught else f"{found.said} (in {part.unit.id})"
                rows[found.planted] = msgspec.structs.replace(found, said=said)
    return [msgspec.to_builtins(found) for found in rows.values()]


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
        config={name: merged_values(values.items()) for name, values in config.items()},
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
        oracle=merged_values((part.unit.run.label, rule.oracle) for part, rule in rules),
        rule=merged_values((part.unit.run.label, rule.rule) for part, rule in rules),
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


def merged_timing(begun: Sequence[Part]) -> Iterator[Event]:
    """Yield the merged time measurement. Rates relate to the wall time of the fleet, with several engines at once."""
    rows = [event for _, event in events_of_kind(begun, "measured")]
    suites = sum(row["suite_seconds"] for row in rows)
    if not suites:
        return
    wall = covered_seconds((part.record.began, part.finish) for part in begun if part.record is not None)
    yield {
        "event": "measured",
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
