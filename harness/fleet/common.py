"""What the runs of a fleet have in common, and where they differ whose it is: engine, rule, times, known issues."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from harness.fleet.part import Fleet, Part, renamed
from harness.qualify.united import waivers
from reports.assemble import Event, assemble, last_of
from reports.schema import Calibration, EngineResult, SelfTestRow, Waiver
from reports.text import listed, many


def start(fleet: Fleet, begun: Sequence[Part]) -> Event:
    """The start of the whole. A verdict is let pass only where each run lets it."""
    starts = [(part, first) for part in begun if (first := part.start) is not None]
    allowed = [set(first["allowed"]) for _, first in starts]
    names = dict.fromkeys(name for _, first in starts for name in first["environment"])
    facts = {
        name: told((part.unit.machine.name, first["environment"].get(name, "not told")) for part, first in starts)
        for name in names
    }
    return {
        "version": fleet.version,
        "started": fleet.started,
        "command": fleet.command,
        "profile": told((part.unit.run.label, first["profile"]) for part, first in starts) or "none",
        "seed": ", ".join(dict.fromkeys(first["seed"] for _, first in starts)) or "none",
        "shard": "",
        "fault": None,
        "environment": {**facts, **fleet.environment},
        "allowed": sorted(set.intersection(*allowed)) if allowed else [],
    }


def told(values: Iterable[tuple[str, str]]) -> str:
    """A value that all have, or each value with whose it is."""
    whose: dict[str, list[str]] = defaultdict(list)
    for who, value in values:
        whose[value].append(who)
    if len(whose) == 1:
        return next(iter(whose))
    return "; ".join(f"{value} ({', '.join(dict.fromkeys(who))})" for value, who in whose.items())


def self_tests(begun: Sequence[Part]) -> list[dict[str, object]]:
    """The detector's self-test, wherever it ran: one that was wrong anywhere was wrong."""
    rows: dict[str, SelfTestRow] = {}
    for part in begun:
        for found in msgspec.convert((last_of(part.log, "selftest") or {}).get("rows", []), list[SelfTestRow]):
            if found.planted not in rows or not found.caught:
                said = found.said if found.caught else f"{found.said} (in {part.unit.id})"
                rows[found.planted] = msgspec.structs.replace(found, said=said)
    return [msgspec.to_builtins(found) for found in rows.values()]


def engine_and_calibration(begun: Sequence[Part], end: float) -> Iterator[Event]:
    """What is said of the engine and of the rule where there are several: each with whose it is."""
    engines = [(part, msgspec.convert(e["engine"], EngineResult)) for part, e in all_of(begun, "engine")]
    if engines:
        yield {"event": "engine", "at": end, "engine": msgspec.to_builtins(one_engine(engines))}
    rules = [
        (part, msgspec.convert(e["calibration"], Calibration), e["seconds"]) for part, e in all_of(begun, "calibration")
    ]
    if rules:
        one = one_calibration([(part, rule) for part, rule, _ in rules])
        seconds = sum(seconds for *_, seconds in rules)
        yield {"event": "calibration", "at": end, "calibration": msgspec.to_builtins(one), "seconds": seconds}


def all_of(begun: Sequence[Part], kind: str) -> Iterator[tuple[Part, Event]]:
    """Every event of a kind with its unit."""
    return ((part, event) for part in begun for event in part.log if event["event"] == kind)


def one_engine(engines: Sequence[tuple[Part, EngineResult]]) -> EngineResult:
    """One engine is itself; of several the names, and what each can do under its name."""
    builds = list(dict.fromkeys(named(engine) for _, engine in engines))
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
        config={name: told(values.items()) for name, values in config.items()},
        capabilities=capabilities,
    )


def named(engine: EngineResult) -> str:
    """An engine and its version."""
    return f"{engine.name} {engine.version or '(version unknown)'}"


def one_calibration(rules: Sequence[tuple[Part, Calibration]]) -> Calibration:
    """What all calibrations found: exact only where each was, as noisy as the noisiest."""
    found = [rule for _, rule in rules]
    noise = [rule.noise_nats for rule in found if rule.noise_nats is not None]
    latency = [rule.latency_seconds for rule in found if rule.latency_seconds is not None]
    mixtures: dict[str, bool] = {}
    for rule in found:
        for name, alike in rule.mixtures.items():
            mixtures[name] = mixtures.get(name, True) and alike
    return Calibration(
        oracle=told((part.unit.run.label, rule.oracle) for part, rule in rules),
        rule=told((part.unit.run.label, rule.rule) for part, rule in rules),
        exact=all(rule.exact for rule in found),
        noise_nats=max(noise) if noise else None,
        probes=sum(rule.probes for rule in found),
        differing=sum(rule.differing for rule in found),
        mixtures=mixtures,
        notes=[
            f"{part.unit.column(rule.cell) if rule.cell else part.unit.id}: {note}"
            for part, rule in rules
            for note in rule.notes
        ],
        latency_seconds=max(latency) if latency else None,
        stall_seconds=max(rule.stall_seconds for rule in found),
    )


def measured(begun: Sequence[Part], end: float) -> Iterator[Event]:
    """Where the time went: rates are of the fleet's time, during which several engines were busy."""
    rows = [event for _, event in all_of(begun, "measured")]
    suites = sum(row["suite_seconds"] for row in rows)
    if not suites:
        return
    wall = covered((part.record.began, part.finish) for part in begun if part.record is not None)
    yield {
        "event": "measured",
        "at": end,
        "suite_seconds": round(wall, 3),
        "busy_seconds": round(wall * sum(row["busy_seconds"] for row in rows) / suites, 3),
        "engine_starts": [seconds for row in rows for seconds in row["engine_starts"]],
    }


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """The time during which at least one of them ran."""
    total, until = 0.0, 0.0
    for began, ended in sorted(spans):
        total += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return total


def known(begun: Sequence[Part]) -> list[dict[str, object]]:
    """Every known issue with what became of it over all runs that had it."""
    by_run: dict[str, list[Part]] = defaultdict(list)
    for part in begun:
        by_run[part.unit.run.label].append(part)
    rows: list[Waiver] = []
    for parts in by_run.values():
        logs = [[renamed(event, part.unit) for event in part.log] for part in parts]
        verdicts = assemble([event for log in logs for event in log]).requirements
        rows += msgspec.convert(waivers(logs, verdicts), list[Waiver])
    merged: dict[tuple[object, ...], Waiver] = {}
    for given in rows:  # two seeds that found one case are one use
        row = msgspec.structs.replace(given, cases=list(dict.fromkeys(given.cases)))
        key = (row.requirement, row.cell, row.signature, row.fingerprint, row.versions)
        merged[key] = together(merged[key], row) if key in merged else row
    return [msgspec.to_builtins(row) for row in merged.values()]


def together(one: Waiver, other: Waiver) -> Waiver:
    """A known issue that two runs had: used where either used it, else what both say."""
    cases = list(dict.fromkeys([*one.cases, *other.cases]))
    state = "used" if cases else one.state if one.state == other.state else "not exercised"
    return msgspec.structs.replace(one, cases=cases, state=state)
