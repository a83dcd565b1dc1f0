"""The layers of a run: what ran in each, and with which verdicts."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from coldproof.harness.schema.results import Calibration, EngineResult, LayerResult, RequirementResult

Event = dict[str, Any]


def layer_names(events: list[Event]) -> list[str]:
    """Return the names of the layers of a run, in their order."""
    first = next((event for event in events if event["event"] == "run_started"), {})
    return [layer["name"] for layer in first.get("layers", [])]


def own_events(events: list[Event]) -> list[Event]:
    """Return the events without those of all layers but the last: its engine and calibration are the run's."""
    others = layer_names(events)[:-1]
    return [event for event in events if event.get("layer") not in others]


def layer_results(events: list[Event], requirements: list[RequirementResult]) -> list[LayerResult]:
    """Return the result of each layer; none for a run of one layer."""
    names = layer_names(events)
    return [layer_result(name, events, requirements) for name in names] if len(names) > 1 else []


def layer_result(name: str, events: list[Event], requirements: list[RequirementResult]) -> LayerResult:
    """Return the result of one layer."""
    own = [event for event in events if event.get("layer") == name]
    last = {event["event"]: event for event in own}
    examples = [event for event in own if event["event"] == "example"]
    verdicts = Counter(one.verdict.value for r in requirements for one in r.layers if one.layer == name)
    measured = last.get("measured", {})
    seconds = measured.get("suite_seconds")
    return LayerResult(
        layer=name,
        engine=msgspec.convert(last["engine"]["engine"], EngineResult) if "engine" in last else None,
        calibration=msgspec.convert(last["calibration"]["calibration"], Calibration) if "calibration" in last else None,
        verdicts=dict(verdicts),
        examples=len(examples),
        requests=sum(event["requests"] for event in examples),
        seconds=seconds,
        engine_idle_share=round(1 - measured["busy_seconds"] / seconds, 3) if seconds else None,
    )
