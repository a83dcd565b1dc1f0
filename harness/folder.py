"""The report folder, and what goes into it about the engine."""

from __future__ import annotations

from pathlib import Path

from harness.lab import Lab
from harness.options import PROPOSED


def prepare_folder(folder: Path, *, clear: bool) -> None:
    """Make the report folder and take away an earlier run's files, so that nothing old passes for new."""
    (folder / "cases").mkdir(parents=True, exist_ok=True)
    if not clear:
        return
    for pattern in (
        "events.ndjson",
        "results.json",
        "manifest.json",
        "index.html",
        "badge.svg",
        "junit.xml",
        "summary.md",
        f"*{PROPOSED}",
        "engine-*.log",
        "cases/*",
    ):
        for old in folder.glob(pattern):
            old.unlink()


def engine_facts(lab: Lab) -> dict[str, object]:
    """The engine part of results.json."""
    engine = lab.engine
    return {
        "name": "vLLM" if engine.name == "vllm" else engine.name,
        "version": engine.version,
        "adapter": engine.name,
        "worker": lab.session.options.worker,
        "config": dict(engine.config),
        "capabilities": {
            c.value: {"present": s.present, "evidence": s.evidence} for c, s in engine.capabilities.items()
        },
    }
