"""Cases whose reproducers are tested."""

from __future__ import annotations

from typing import Any

import msgspec
from support import report_samples
from support.histories import ask, burst, put

from coldproof.harness.workload.steps import Step, Workload
from coldproof.reports.schema.case import Case

COMMAND = "llama-server --model /x/models/m/model.gguf --port 8123 --lora /x/a.gguf --lora /x/b.gguf --parallel 1"

RECIPES: dict[str, dict[str, Any]] = {"A": {"seed": 1, "rank": 8}, "B": {"seed": 2, "rank": 8}}


def case_of(engine: str, *steps: Step) -> Case:
    """A case of a fault that a request after an adapter's shows."""
    return report_samples.case(
        engine=engine,
        workload=msgspec.to_builtins(Workload(steps or (put("A"), burst(ask(adapter="tenant")), burst(ask())))),
        recipes=RECIPES,
        engine_config={"command": COMMAND, "model": "/x/models/0123456789abcdef"},
    )
