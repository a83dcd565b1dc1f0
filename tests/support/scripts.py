"""Cases whose reproducers are tested."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import msgspec
from support import report_samples
from support.histories import ask, burst, put

from coldproof.harness.case.reproducer.script import reproducer
from coldproof.harness.execution.models.lora import tiny_model
from coldproof.harness.schema.case import Case
from coldproof.harness.workload.steps import Step, Workload

COMMAND = "llama-server --model /x/models/m/model.gguf --port 8123 --lora /x/a.gguf --lora /x/b.gguf --parallel 1"

RECIPES: dict[str, dict[str, Any]] = {"A": {"seed": 1, "rank": 8}, "B": {"seed": 2, "rank": 8}}


def case_of(engine: str, *steps: Step) -> Case:
    """Return a case in which a request after an adapter's request shows a fault."""
    return report_samples.case(
        engine=engine,
        workload=msgspec.to_builtins(Workload(steps or (put("A"), burst(ask(adapter="tenant")), burst(ask())))),
        recipes=RECIPES,
        engine_config={"command": COMMAND, "model": "/x/models/0123456789abcdef"},
    )


def module_of(case: Case, name: str = "script") -> dict[str, Any]:
    """Return the names that a case's script defines. Nothing of it is run."""
    made = sys.modules[name] = types.ModuleType(name)
    exec(compile(reproducer(case), f"{name}.py", "exec"), vars(made))
    return vars(made)


def run_script(folder: Path, case: Case, url: str) -> tuple[int, str]:
    """Run a case's script against a stand-in at `url`. Return its exit code and its output."""
    model, script = tiny_model(folder), folder / "case.py"
    script.write_text(reproducer(case))
    done = subprocess.run(
        [sys.executable, str(script), url],
        cwd=folder,
        env={**os.environ, "MODEL_CONFIG": str(model / "config.json")},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr
