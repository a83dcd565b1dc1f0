"""Runs of several engines, for the tests of the page that shows them side by side."""

from __future__ import annotations

from typing import Any

import msgspec
from support import report_samples as samples

from coldproof.harness.schema import results as results_module
from coldproof.harness.schema.results import Results
from coldproof.harness.schema.verdict import Verdict
from coldproof.reports.side_by_side.columns import Column, Source, columns


def run(name: str = "vLLM", version: str = "0.32.0", **changes: Any) -> Results:
    """Return a run of an engine. `adapter`, `worker` and `capabilities` change its engine, other changes the run."""
    engine = samples.results().engine
    assert engine is not None
    of_engine = {key: changes.pop(key) for key in ("adapter", "worker", "capabilities") if key in changes}
    changed = msgspec.structs.replace(engine, name=name, version=version, **of_engine)
    return samples.results(**{"engine": changed, **changes})


def source(results: Results, link: str = "x/index.html", name: str = "x/results.json", **changes: Any) -> Source:
    """Return a run with the address of its own report."""
    return Source(results=results, link=link, name=name, **changes)


def pair(old: Results, new: Results) -> list[Source]:
    """Two runs as `coldproof compare` takes them."""
    return [source(old, label="Before"), source(new, label="Now")]


def two(old: Results, new: Results) -> list[Column]:
    """The columns of two runs."""
    return columns(pair(old, new))


def everything() -> list[Source]:
    """Return four runs with every verdict, cells that disagree, an invalid run, and many differences between the
    runs.
    """
    mixed = [samples.cell("tight", Verdict.NOT_EXERCISED, reason="never seen: preemptions"), samples.cell("default")]
    vllm = samples.results(samples.case(), samples.case("b", signature="another", known_issue="https://example.org/7"))
    llama = run(
        "llama.cpp",
        "b6000",
        profile="smoke",
        seed="7",
        waivers=[],
        requirements=[
            samples.requirement("LORA-1", "reload", *mixed[::-1]),
            samples.requirement("LORA-10", "ten", samples.cell(verdict=Verdict.KNOWN_ISSUE)),
            samples.requirement("LORA-2", "two"),
        ],
    )
    blind = [results_module.SelfTestRow(planted="x", caught=False, said="")]
    return [
        source(vllm, "vllm/index.html", "vllm/results.json"),
        source(llama, "", "llama/results.json"),
        source(run("SGLang", "0.5", selftest=blind), "sglang/index.html"),
        source(run("none", engine=None, complete=False, problem="no engine", requirements=[]), "none/index.html"),
    ]
