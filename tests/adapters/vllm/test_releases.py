"""A vLLM release that lacks what the adapter needs is reported in one line; one that only moved it works."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coldproof import IMPORT_ROOT
from coldproof.adapters.vllm.inproc.setup import StatCounters
from coldproof.adapters.vllm.releases import (
    CHATS,
    INTERNALS,
    PARSERS,
    host_chunks,
    host_region_sizes,
    kept_every,
    record_every_step,
    thread_binding,
)

MISSING = "from coldproof.adapters.vllm.releases import missing_internals; print(missing_internals())"
START = """
import pathlib, sys
from coldproof.adapters.protocol.engine import EngineStartError
from coldproof.adapters.vllm.inproc.setup import build
from coldproof.adapters.vllm.server import VllmOptions

model = pathlib.Path(sys.argv[1])
model.mkdir()
(model / "config.json").write_text("{}")
try:
    build(VllmOptions(model=str(model), log=model / "engine.log"))
except EngineStartError as problem:
    print(problem)
"""


def write_release(folder: Path, *, without: str = "", parser: str = PARSERS[0]) -> None:
    """Write a package `vllm` with everything that the adapter needs, except for a module or one of its names."""
    for module, names in {**INTERNALS, parser: ("make_arg_parser",), "version": ("__version__",)}.items():
        if module == without:
            continue
        path = folder.joinpath("vllm", *module.split("."))
        path.mkdir(parents=True, exist_ok=True)
        for parent in (path, *path.parents):
            if parent == folder:
                break
            (parent / "__init__.py").touch()
        lines = [f"{name} = 'any'\n" for name in names if f"{module}.{name}" != without]
        with (path / "__init__.py").open("a") as file:
            file.writelines(lines)


def output(folder: Path, code: str, *words: str) -> str:
    """Return the output of a program that finds this vLLM."""
    environment = {"PYTHONPATH": f"{folder}:{IMPORT_ROOT}", "PATH": ""}
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("parser", PARSERS)
def test_a_release_with_everything_misses_nothing(tmp_path: Path, parser: str) -> None:
    """The argument parser may be in any of its known modules."""
    write_release(tmp_path, parser=parser)
    assert output(tmp_path, MISSING) == "[]"


@pytest.mark.parametrize("without", ["v1.worker.worker_base", "v1.outputs.LogprobsLists"])
def test_a_missing_module_or_name_is_named(tmp_path: Path, without: str) -> None:
    """Only the missing name is reported."""
    write_release(tmp_path, without=without)
    assert output(tmp_path, MISSING) == f"['{without}']"


def test_the_start_reports_in_one_line_what_the_release_lacks(tmp_path: Path) -> None:
    """The line has the version."""
    write_release(tmp_path, without="v1.engine.llm_engine")
    said = output(tmp_path, START, str(tmp_path / "model"))
    assert said.startswith("the engine did not start: vLLM any does not have v1.engine.llm_engine; log: ")
    assert len(said.splitlines()) == 1


def test_the_chat_template_is_found_where_older_releases_have_it(tmp_path: Path) -> None:
    """Until 0.31 it is in the entry points."""
    path = tmp_path.joinpath("vllm", *CHATS[1].split("."))
    path.mkdir(parents=True)
    for folder in (path, path.parent, path.parent.parent):
        (folder / "__init__.py").touch()
    (path / "__init__.py").write_text("def load_chat_template(name):\n    return 'template ' + name\n")
    code = "from coldproof.adapters.vllm.releases import chat_template; print(chat_template('a.jinja'))"
    assert output(tmp_path, code) == "template a.jinja"


class DroppingEngine:
    """An engine whose step records only the statistics of outputs, as in vLLM 0.26."""

    def __init__(self, steps: list[Any]) -> None:
        self.engine_core = SimpleNamespace(get_output=lambda: steps.pop(0))
        self.recorded: list[str] = []

    def step(self) -> None:
        """Execute a step."""
        outputs = self.engine_core.get_output()
        if outputs.scheduler_stats is not None and outputs.outputs:
            self.recorded.append(outputs.scheduler_stats)


@pytest.mark.parametrize(
    ("version", "expected"),
    [("0.26.0", ["prefill", "decode"]), ("0.27.1", ["prefill", "decode"]), ("0.28.0", ["decode"]), ("dev", ["decode"])],
)
def test_a_step_without_an_output_is_recorded_where_the_release_drops_it(version: str, expected: list[str]) -> None:
    """The step is recorded once, and a step without statistics is not recorded."""
    steps = [("prefill", []), (None, []), ("decode", ["token"])]
    engine = DroppingEngine([SimpleNamespace(scheduler_stats=stats, outputs=outputs) for stats, outputs in steps])
    record_every_step(engine, version, engine.recorded.append)
    for _ in steps:
        engine.step()
    assert engine.recorded == expected


def test_the_statistics_of_a_step_are_added_once() -> None:
    """An engine may record the same object again; equal statistics of another step count separately."""

    def statistics() -> Any:
        found = SimpleNamespace(queries=97, hits=32)
        others = dict.fromkeys(("connector_prefix_cache_stats", "kv_connector_stats", "spec_decoding_stats"))
        return SimpleNamespace(prefix_cache_stats=found, **others)

    counters, first = StatCounters(), statistics()
    for one in (first, first, statistics(), None):
        counters.record(one)
    assert (counters.queried_tokens, counters.hit_tokens) == (194, 64)


@pytest.mark.parametrize(
    ("spec", "sizes"),
    [
        (SimpleNamespace(num_chunks=20, kv_bytes_per_chunk=4096), {"num_chunks": 20, "kv_bytes_per_chunk": 4096}),
        (SimpleNamespace(num_blocks=20, kv_bytes_per_chunk=4096), {"num_blocks": 20, "kv_bytes_per_block": 4096}),
    ],
    ids=["0.30", "0.28"],
)
def test_chunks_of_host_memory_were_called_blocks(spec: Any, sizes: dict[str, int]) -> None:
    """Each release has its own names for the number of chunks and for the arguments of the shared region."""
    assert (host_chunks(spec), host_region_sizes(spec)) == (20, sizes)


@pytest.mark.parametrize("version", ["0.21.0", "0.33.0", "a build without a number"])
def test_an_engine_computes_on_any_core(version: str) -> None:
    assert thread_binding(version) == "nobind"


def test_vllm_020_is_given_a_list_of_cores() -> None:
    """With `nobind`, `OMPProcessManager` ends with an IndexError in that release."""
    assert thread_binding("0.20.2").isdigit()


@pytest.mark.parametrize(
    ("settings", "blocks", "states", "every"),
    [
        ({"prefix_cache_retention_interval": 0}, [16, 64], False, 0),
        ({"prefix_cache_retention_interval": 128}, [16, 64], False, 128),
        ({"prefix_cache_retention_interval": None}, [16, 64], False, 64),
        ({}, [16, 64], False, None),
        ({"prefix_cache_retention_interval": 0, "cache_hit_alignment_tokens": 64}, [16, 128], False, None),
        ({"prefix_cache_retention_interval": None}, [16, 128], False, 128),
        ({"prefix_cache_retention_interval": 0}, [64, 64], True, 0),
        ({"prefix_cache_retention_interval": 128}, [64, 64], True, None),
    ],
)
def test_the_positions_for_which_sparse_layers_keep_blocks(
    settings: dict[str, int | None], blocks: list[int], states: bool, every: int | None
) -> None:
    """The interval is unknown before 0.29, where hits end inside a block, and for states with an interval."""
    assert kept_every(SimpleNamespace(block_size=64, **settings), blocks, states=states) == every
