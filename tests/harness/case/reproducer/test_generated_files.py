"""The files that a script writes have the weights of the models and adapters that Coldproof generates."""

from __future__ import annotations

import importlib
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from coldproof.adapters.common.gguf import read_tensors, write_adapter, write_model
from coldproof.adapters.common.tiny_model import make_adapter, make_model
from coldproof.adapters.llamacpp import script as llamacpp
from coldproof.adapters.llamacpp.reproducer import settings
from coldproof.adapters.spec.cell import ModelLayers
from coldproof.adapters.spec.reproduction import RecordedEngine
from coldproof.adapters.spec.script import gguf_files, tensors
from coldproof.harness.case.reproducer.script import generated_model

RECIPES = {"A": {"seed": 1, "rank": 8}, "B": {"seed": 2, "rank": 4}}
needs_gguf = pytest.mark.skipif(importlib.util.find_spec("gguf") is None, reason="not installed")
needs_torch = pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="not installed")


def set_constants(module: Any, monkeypatch: pytest.MonkeyPatch, **values: Any) -> None:
    """Set the constants of a module of the script to the values of a case."""
    for name, value in values.items():
        if hasattr(module, name):
            monkeypatch.setattr(module, name, value)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return the folder of the generated model, with its adapters beside it."""
    make_model(tmp_path / "ours" / "model")
    config = json.loads((tmp_path / "ours" / "model" / "config.json").read_text())
    for name, recipe in RECIPES.items():
        make_adapter(tmp_path / "ours" / f"adapter-{name}", config, **recipe)
    return tmp_path / "ours" / "model"


def test_tensors_are_those_of_the_model_and_the_adapters(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names, shapes and values of the tensors are equal."""
    set_constants(tensors, monkeypatch, ADAPTERS=RECIPES, **generated_model(ModelLayers.FULL))
    for file, drawn in (
        (model / "model.safetensors", tensors.model_tensors(0)),
        *(
            (model.parent / f"adapter-{name}" / "adapter_model.safetensors", tensors.adapter_tensors(name))
            for name in RECIPES
        ),
    ):
        found = {name: (tuple(shape), raw) for name, (shape, raw) in read_tensors(file).items()}
        assert found == {name: (shape, values.tobytes()) for name, (shape, values) in drawn.items()}


@needs_gguf
@pytest.mark.parametrize("file", ["model.gguf", "model-q4.gguf"])
def test_gguf_files_are_those_of_the_adapter(
    file: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The GGUF files of the model and of its adapters are equal."""
    config = json.loads((model / "config.json").read_text())
    engine = RecordedEngine(
        name="llamacpp",
        version=None,
        config={"command": f"llama-server --model {file}"},
        contents=(),
        generated_model=True,
        cell=None,
        model=config,
    )
    theirs, four_bits = tmp_path / "theirs", file.endswith("-q4.gguf")
    values = {"ADAPTERS": RECIPES, "FILES": theirs, "IMAGES": False, "FOUR_BITS": four_bits, **settings(engine)}
    set_constants(tensors, monkeypatch, ADAPTERS=RECIPES, **generated_model(ModelLayers.FULL))
    for module in (llamacpp, gguf_files):
        set_constants(module, monkeypatch, **values)
    llamacpp.write_files(0)
    write_model(model, tmp_path / file, four_bits=four_bits)
    assert contents(theirs / file) == contents(tmp_path / file)
    for name in RECIPES:
        write_adapter(model.parent / f"adapter-{name}", tmp_path / f"{name}.gguf", model=model)
        assert contents(theirs / f"adapter-{name}.gguf") == contents(tmp_path / f"{name}.gguf")


def contents(file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the key-value pairs and the tensors of a GGUF file, whatever their order."""
    reader = importlib.import_module("gguf").GGUFReader(file)
    values = {name: field.contents() for name, field in reader.fields.items()}
    return values, {one.name: (one.shape.tolist(), one.data.tobytes()) for one in reader.tensors}


@needs_torch
def test_files_written_with_torch_have_the_same_weights(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights of the model and the adapters are equal, and the tokenizer gives the same tokens."""
    from coldproof.adapters.spec.script import torch_files

    set_constants(
        torch_files, monkeypatch, ADAPTERS=RECIPES, FILES=tmp_path, IMAGES=False, **generated_model(ModelLayers.FULL)
    )
    torch_files.write_model(tmp_path / "model", 0)
    torch_files.write_tokenizer(tmp_path / "model")
    assert read_tensors(tmp_path / "model" / "model.safetensors") == read_tensors(model / "model.safetensors")
    for name in RECIPES:
        torch_files.write_lora(name, tmp_path / name)
        ours = read_tensors(model.parent / f"adapter-{name}" / "adapter_model.safetensors")
        assert read_tensors(tmp_path / name / "adapter_model.safetensors") == ours
    transformers: Any = importlib.import_module("transformers")
    chat = [{"role": "user", "content": "a b~"}]
    tokens = [
        transformers.AutoTokenizer.from_pretrained(folder).apply_chat_template(chat, add_generation_prompt=True)
        for folder in (tmp_path / "model", model)
    ]
    assert tokens[0] == tokens[1]
