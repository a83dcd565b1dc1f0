"""Reproducers in the language of each engine compile, carry what they need, and say what is to be run.

Tests in tests/contract show that they find a real engine's fault, where that engine is installed.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support import report_samples
from support.histories import read_config
from support.scripts import COMMAND, case_of

from coldproof.adapters import registry
from coldproof.adapters.common.gguf import write_adapter, write_model
from coldproof.adapters.registry import ENGINES, reproduction_of
from coldproof.adapters.vllm.reproducer import OPENAI
from coldproof.harness.case.reproducer.script import recorded_engine, reproducer, reproduction, uses_generated_model
from coldproof.harness.execution.models.lora import generate_adapter, tiny_model

WITH_REPRODUCTION = [name for name, spec in ENGINES.items() if spec.reproduction is not None]


@pytest.mark.parametrize(
    "noise", [{}, {"noise_nats": 0.8}, {"noise_nats": 0.8, "band": report_samples.band()}], ids=str
)
@pytest.mark.parametrize("engine", WITH_REPRODUCTION)
def test_a_script_defines_each_name_once(engine: str, noise: dict[str, Any]) -> None:
    """Every top-level name is defined once, though the definitions come from several files."""
    tree = ast.parse(reproducer(msgspec.structs.replace(case_of(engine), **noise)))
    defined = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    assigned = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    constants = [node.id for target in assigned for node in ast.walk(target) if isinstance(node, ast.Name)]
    assert [name for name, times in Counter(defined + constants).items() if times > 1] == []
    assert {"Story", "Reply", "scenario", "main"} <= set(defined)


@pytest.mark.parametrize("engine", WITH_REPRODUCTION)
def test_a_script_imports_the_standard_library_and_what_it_says(engine: str) -> None:
    """It imports nothing of Coldproof."""
    case = case_of(engine)
    tree = ast.parse(reproducer(case))
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    found = {name.split(".")[0] for name in names}
    needed = {name.replace("-", "_") for name in reproduction(case).packages}
    brought = {"safetensors", "tokenizers", "torch"} if needed & {"vllm", "torch"} else set()
    assert found <= {*sys.stdlib_module_names, *needed, *brought}


def test_every_engine_that_coldproof_starts_has_a_reproduction() -> None:
    """An engine without one would get a reproducer for another engine's server."""
    assert set(registry.started()) <= set(WITH_REPRODUCTION)
    assert reproduction_of(case_of("vllm").engine) is OPENAI


def test_an_engine_without_a_reproduction_gets_the_default_engines_script() -> None:
    """The same holds for the engine of a recorded case that Coldproof no longer supports, and for one that its own
    client does not suit: a server by URL that has vLLM's fields.
    """
    assert reproduction(case_of("endpoint")) is OPENAI
    assert reproduction_of(case_of("forgotten").engine) is OPENAI


def test_llama_cpps_command_has_the_scripts_own_files() -> None:
    """Adapters are numbered in the order of the case's recipes, and the model is in the script's folder."""
    command = reproduction_of(case_of("llamacpp").engine).command(recorded_engine(case_of("llamacpp")))
    assert command == (
        "llama-server --model coldproof-files/model.gguf --port 8000 --parallel 1 "
        "--lora coldproof-files/adapter-A.gguf --lora coldproof-files/adapter-B.gguf"
    )


def test_llama_cpps_command_keeps_the_models_file() -> None:
    """The name of the file says that the script has to write the model with 4-bit weights."""
    case = case_of("llamacpp")
    command = case.engine_config["command"].replace("model.gguf", "model-q4.gguf")
    case = msgspec.structs.replace(case, engine_config={**case.engine_config, "command": command})
    assert "--model coldproof-files/model-q4.gguf " in reproduction_of(case.engine).command(recorded_engine(case))


@pytest.mark.parametrize("model", ["/their/model", "/models/llama", "/x/.coldproof/cache/trained/smollm2"])
def test_a_users_own_model_keeps_its_path(model: str) -> None:
    """The script cannot generate it, whatever the name of its folder."""
    case = msgspec.structs.replace(case_of("llamacpp"), engine_config={"command": COMMAND, "model": model})
    assert not uses_generated_model(case)
    assert "--model /x/models/m/model.gguf" in reproduction_of(case.engine).command(recorded_engine(case))


def test_a_gguf_file_has_the_tensors_of_the_model(tmp_path: Path) -> None:
    """It has the magic number, the version, unchanged weights, and adapter tensors named by the tensors they change."""
    model = tiny_model(tmp_path)
    adapter = generate_adapter(tmp_path, read_config(model), seed=1, rank=4)
    write_model(model, tmp_path / "model.gguf")
    write_adapter(adapter.folder, tmp_path / "adapter.gguf", model=model)
    written, weights = (tmp_path / "model.gguf").read_bytes(), (model / "model.safetensors").read_bytes()
    assert written[:8] == b"GGUF\x03\0\0\0"
    assert len(written) % 32 == 0
    assert weights[-4096:] in written
    assert b"blk.1.attn_q.weight.lora_a" in (tmp_path / "adapter.gguf").read_bytes()
