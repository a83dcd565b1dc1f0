"""Lines and branches of vLLM's cache code that a run executes, by requirement and in total.

The engine runs in this process, and coverage.py slows it. The shares depend on how many examples are drawn. Each line
of the table takes some seconds, because coverage.py reads all files again. Needs the package `coverage`.
Run: python -m benchmarks.branch_coverage --profile smoke [other options of `coldproof run`]
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

import coverage
import pytest

from coldproof import suites
from coldproof.harness.session.pytest_command import PLUGIN

ENGINE = ("--engine", "vllm-inproc", "--worker", "fingerprint", "--findings", "off")
CODE = {
    "blocks and keys": ("v1/core/*.py",),
    "scheduler": ("v1/core/sched/*.py",),
    "connectors": (
        "distributed/kv_transfer/kv_connector/v1/base.py",
        "distributed/kv_transfer/kv_connector/v1/example_connector.py",
        "distributed/kv_transfer/kv_connector/v1/multi_connector.py",
        "distributed/kv_transfer/kv_connector/v1/offloading/*.py",
        "distributed/kv_transfer/kv_connector/v1/offloading_connector.py",
        "distributed/kv_transfer/kv_connector/v1/simple_cpu_offload_connector.py",
        "v1/kv_offload/*.py",
        "v1/kv_offload/*/*.py",
        "v1/kv_offload/*/*/*.py",
        "v1/simple_kv_offload/*.py",
    ),
    "adapters": ("lora/request.py", "lora/worker_manager.py", "v1/worker/lora_model_runner_mixin.py"),
}


class RequirementContexts:
    """A pytest plugin: what a test executes is recorded under the id of its requirement."""

    def __init__(self, measured: coverage.Coverage) -> None:
        self.measured = measured
        self.ids: dict[str, None] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Switch to the requirement's context during its test."""
        mark = item.get_closest_marker("requirement")
        name = mark.args[0].id if mark is not None else "other"
        self.ids[name] = None
        self.measured.switch_context(name)
        try:
            return (yield)
        finally:
            self.measured.switch_context("between")


def vllm_folder() -> Path:
    """Return the folder of the installed vLLM."""
    found = importlib.util.find_spec("vllm")
    if found is None or found.origin is None:
        raise SystemExit("vLLM is not installed")
    return Path(found.origin).parent


def path_of(reported: str) -> PurePath:
    """Return the whole path of a file: coverage.py shortens those below the working folder."""
    return PurePath(Path.cwd(), reported)


def row(name: str, measured: coverage.Coverage, groups: dict[str, list[str]], context: str | None) -> str:
    """Return a line: of each group of files the shares of lines and of branches. `context`: of one requirement."""
    only = None if context is None else [f"^{context}$"]
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        measured.json_report(outfile=file.name, contexts=only, ignore_errors=True)
        files: dict[str, Any] = json.loads(Path(file.name).read_text(encoding="utf-8"))["files"]
    words = []
    for patterns in groups.values():
        own = [facts["summary"] for path, facts in files.items() if any(path_of(path).match(one) for one in patterns)]
        parts = (("covered_lines", "num_statements"), ("covered_branches", "num_branches"))
        shares = (sum(one[done] for one in own) / max(1, sum(one[of] for one in own)) for done, of in parts)
        words.append(" ".join(f"{share:6.1%}" for share in shares))
    return f"{name:<12} " + "   ".join(words) + "\n"


def main() -> int:
    """Run the suites under measurement and print the table."""
    root = vllm_folder()
    groups = {name: [str(root / pattern) for pattern in patterns] for name, patterns in CODE.items()}
    include = [pattern for patterns in groups.values() for pattern in patterns]
    measured = coverage.Coverage(data_file=None, branch=True, include=include, config_file=False)
    contexts = RequirementContexts(measured)
    folder = str(Path(suites.__file__ or "").resolve().parent)
    measured.start()
    try:
        code = pytest.main([folder, "-p", PLUGIN, *ENGINE, *sys.argv[1:]], plugins=[contexts])
    finally:
        measured.stop()
    sys.stdout.write(" " * 13 + "   ".join(f"{name:<13}" for name in groups) + "\n")
    sys.stdout.write(" " * 13 + "   ".join(" lines branch" for _ in groups) + "\n")
    for name in sorted(contexts.ids):
        sys.stdout.write(row(name, measured, groups, name))
        sys.stdout.flush()
    sys.stdout.write(row("all", measured, groups, None))
    return int(code)


if __name__ == "__main__":
    raise SystemExit(main())
