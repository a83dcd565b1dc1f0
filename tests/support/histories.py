"""Hand-made histories, adapter contents that cost nothing, and a scripted run, for the unit tests.

Nothing here judges, because an error in a builder must not look like an error of the harness.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coldproof.adapters.protocol.metrics import Metrics
from coldproof.adapters.protocol.requests import Completion, CompletionRequest, Token
from coldproof.adapters.protocol.shape import EngineShape
from coldproof.adapters.server.engine import ServerEngine
from coldproof.harness.execution.models.lora import AdapterFiles
from coldproof.harness.execution.runner.runner import WorkloadRun
from coldproof.harness.history.records import CachePartition, History, Identity, Outcome, StepRecord
from coldproof.harness.session.selftest.scripted_engine import ScriptedEngine
from coldproof.harness.session.selftest.selftest import write_content
from coldproof.harness.workload.steps import Burst, Prompt, Request, Route, Segment, SetAdapter, Step, Workload

BLOCK = 16


def shape(**changes: Any) -> EngineShape:
    """Return the shape of an engine with blocks of 16, room for everything and its cache on."""
    facts: dict[str, Any] = {"block_size": BLOCK, "pool_blocks": 1000, "prefix_caching": True}
    return EngineShape(**{"max_model_tokens": 4096, "adapter_slots": 4, **facts, **changes})


def tokens(*ids: int, gap: float | None = 5.0) -> tuple[Token, ...]:
    """Return an answer with these ids, each far from the runner-up unless `gap` says otherwise."""
    return tuple(Token(id=i, at=0.0, gap=gap) for i in ids)


def outcome(
    number: int, prompt: range | tuple[int, ...], answer: tuple[int, ...] = (7, 8, 9), **changes: Any
) -> Outcome:
    """Return one answered request to the base model, sent at second `number` and finished half a second later."""
    adapter, salt = changes.pop("adapter", None), changes.pop("salt", None)
    name, load = (None, 0) if adapter is None else ("tenant", 1)
    facts: dict[str, Any] = {
        "step": number,
        "model": "base" if name is None else f"{name}-n",
        "max_tokens": len(answer),
        "identities": (Identity(adapter, salt),),
        "partition": CachePartition(name, load, salt),
        "tokens": tokens(*answer),
        "finish_reason": "length",
        "cached_tokens": 0,
        "sent": float(number),
        "finished": number + 0.5,
    }
    return Outcome(request=number, prompt=tuple(prompt), **{**facts, **changes})


def history(*outcomes: Outcome, **changes: Any) -> History:
    """Return a history with one burst per outcome, in which the hit counter grows by the reported cached tokens."""
    steps, counted = [], 0.0
    for i, one in enumerate(outcomes):
        before, counted = counted, counted + (one.cached_tokens or 0)
        steps.append(record(i, before=before, after=counted))
    facts: dict[str, Any] = {
        "workload": Workload(tuple(burst(ask(adapter=one.partition.name)) for one in outcomes)),
        "nonce": "n",
        "shape": shape(),
        "steps": tuple(steps),
        "contents": {"A": "digest-a", "B": "digest-b"},
    }
    return History(outcomes=outcomes, **{**facts, **changes})


def record(
    step: int, *, before: float | Metrics | None = 0.0, after: float | Metrics | None = 0.0, **changes: Any
) -> StepRecord:
    """Return one step between two readings of the hit counter, or of all the metrics."""
    readings = {
        name: reading if isinstance(reading, Metrics) else Metrics(hit_tokens=reading)
        for name, reading in (("before", before), ("after", after))
    }
    return StepRecord(step=step, **{"started": float(step), "finished": step + 0.5, **readings, **changes})


def ask(
    *segments: tuple[str, int],
    adapter: str | None = None,
    continues: int | None = None,
    cut: tuple[int, int | None] = (0, None),
    **more: Any,
) -> Request:
    """Return a request for a prompt of named segments, by default 40 tokens of `stem`.

    `cut`: the part of the earlier turns that the request keeps.
    """
    named = tuple(Segment(name, length) for name, length in segments or (("stem", 40),))
    return Request(prompt=Prompt(named, continues, *cut), adapter=adapter, **more)


def burst(*requests: Request) -> Burst:
    """Return a burst of requests that are sent together."""
    return Burst(requests=requests)


def put(content: str, *, name: str = "tenant", path: str | None = None, route: Route = Route.LOAD) -> SetAdapter:
    """Return a step that loads adapter `content` under a name, from a path of its own unless one is given."""
    return SetAdapter(name=name, content=content, path=path or f"files-{content}", route=route)


def contents(folder: Path) -> dict[str, AdapterFiles]:
    """Write three adapter contents of a few bytes and return them. The scripted engine reads no weights."""
    return {name: write_content(folder / f"content-{name}", name) for name in "ABC"}


def play(engine: ScriptedEngine, folder: Path, *steps: Step) -> History:
    """Run these steps on a scripted engine under the nonce `n`, and return the history."""
    return WorkloadRun(engine, Workload(steps), "n", contents(folder), folder / "run").history()


class Tampered(ScriptedEngine):
    """A scripted engine whose answers pass through a function of request and answer before they are returned."""

    def __init__(self, tamper: Callable[[CompletionRequest, Completion], Completion], *, caching: bool = True) -> None:
        super().__init__(caching=caching)
        self.tamper = tamper

    def send(self, request: CompletionRequest, on_token: Callable[[int], None]) -> Completion:
        """Return the honest answer after `tamper` has changed it."""
        return self.tamper(request, super().send(request, on_token))


class SideBySide(ScriptedEngine):
    """A scripted engine that serves as a server does: one thread per request while the calling thread watches them."""

    serve = ServerEngine.serve  # type: ignore[assignment]


def read_config(model: Path) -> dict[str, Any]:
    """Return a model's configuration."""
    found: dict[str, Any] = json.loads((model / "config.json").read_text())
    return found
