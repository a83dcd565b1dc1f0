"""Prepares the report folder, and collects the facts about the engine for the report."""

from __future__ import annotations

from pathlib import Path

from coldproof.adapters.registry import title_of
from coldproof.harness.execution.engines.cell_engines import CellEngines
from coldproof.harness.options import PROPOSED_SUFFIX


def prepare_folder(folder: Path, *, clear: bool) -> None:
    """Create the report folder and, with `clear`, delete the files of an earlier run."""
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
        f"*{PROPOSED_SUFFIX}",
        "engine-*.log",
        "cases/*",
    ):
        for old in folder.glob(pattern):
            old.unlink()


def engine_facts(engines: CellEngines) -> dict[str, object]:
    """Return the `engine` field of results.json."""
    engine = engines.engine
    return {
        "name": title_of(engine.name),
        "version": engine.version,
        "adapter": engine.name,
        "worker": engines.pool.options.worker,
        "config": dict(engine.config),
        "capabilities": {
            c.value: {"present": s.present, "evidence": s.evidence} for c, s in engine.capabilities.items()
        },
    }
