"""The model and the adapters follow from a seed, byte for byte, in the formats that servers read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from tokenizers import Tokenizer

from coldproof.adapters.common import tiny_model as forge
from coldproof.adapters.common.lora_digest import ADAPTER_FILES
from coldproof.adapters.spec.cell import ModelLayers
from coldproof.adapters.spec.generated_models import MAKERS
from coldproof.harness.execution.models.lora import AdapterError, digest_of, generate_adapter, place, tiny_model
from coldproof.harness.execution.models.lora import user_adapter as brought

SMALL: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model with the default architecture and a small hidden size."""
    folder = tmp_path_factory.mktemp("model")
    forge.make_model(folder, hidden=16)
    return folder


def shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Return name and shape of every tensor, as the safetensors package reads them."""
    with safe_open(path, framework="np") as file:
        return {name: file.get_tensor(name).shape for name in file.keys()}  # noqa: SIM118 - it is no dictionary


def content(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every file of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_model_is_its_seed(model: Path, tmp_path: Path) -> None:
    """The same seed gives the same bytes, and another seed changes only the weights."""
    for seed in (0, 1):
        forge.make_model(tmp_path / str(seed), hidden=16, seed=seed)
    first, again, other = content(model), content(tmp_path / "0"), content(tmp_path / "1")
    assert again == first
    assert {name for name in first if first[name] != other[name]} == {"model.safetensors"}


def test_a_model_has_the_shapes_of_its_config(model: Path) -> None:
    """The shapes pass a loader's checks: grouped key and value heads, and a separate output layer."""
    config = json.loads((model / "config.json").read_text())
    found = shapes(model / "model.safetensors")
    attention = "model.layers.1.self_attn"
    assert found["model.embed_tokens.weight"] == found["lm_head.weight"] == (config["vocab_size"], 16)
    assert found[f"{attention}.q_proj.weight"] == (16, 16)
    assert found[f"{attention}.k_proj.weight"] == found[f"{attention}.v_proj.weight"] == (8, 16)
    assert found[f"{attention}.k_proj.bias"] == (8,)
    assert found["model.layers.1.mlp.down_proj.weight"] == (16, 32)
    assert len(found) == 3 + 12 * config["num_hidden_layers"]


def test_weights_are_finite_and_spread_as_stated(model: Path) -> None:
    """A norm consists of ones, and a projection is neither zero nor beyond its bounds."""
    with safe_open(model / "model.safetensors", framework="np") as file:
        drawn = file.get_tensor("model.layers.0.mlp.up_proj.weight")
        norm = file.get_tensor("model.norm.weight")
    assert abs(drawn).max() <= forge.WEIGHT_SPREAD * 1.7321
    assert 0.8 < drawn.std() / forge.WEIGHT_SPREAD < 1.2
    assert (norm == 1).all()


def test_a_sliding_window_model_has_the_shapes_of_its_config(tmp_path: Path) -> None:
    """One layer in six is full, heads have norms, and weights are zero where the model adds one to them."""
    forge.make_sliding_window_model(tmp_path, hidden=16, window=32)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["layer_types"] == ["sliding_attention"] * 5 + ["full_attention"]
    assert config["sliding_window"] == 32
    found = shapes(tmp_path / "model.safetensors")
    layer = "model.layers.5"
    assert found[f"{layer}.self_attn.q_norm.weight"] == (config["head_dim"],) == (4,)
    assert found[f"{layer}.self_attn.k_proj.weight"] == forge.projection_sizes(config)["k_proj"] == (8, 16)
    assert found[f"{layer}.post_feedforward_layernorm.weight"] == (16,)
    assert not any(name.endswith(".bias") for name in found)
    assert len(found) == 3 + 13 * config["num_hidden_layers"]
    with safe_open(tmp_path / "model.safetensors", framework="np") as file:
        assert not file.get_tensor("model.norm.weight").any()
        assert not file.get_tensor("lm_head.weight")[256:].any()


def test_only_printable_tokens_can_win(model: Path) -> None:
    """An output row of zeros gives a logit of 0, which is never the largest. The embeddings of those tokens are not
    zero.
    """
    with safe_open(model / "model.safetensors", framework="np") as file:
        output = file.get_tensor("lm_head.weight")
        embedded = file.get_tensor("model.embed_tokens.weight")
    assert [token for token, row in enumerate(output) if row.any()] == list(range(32, 127))
    assert output[32:127].std() > 0.8 * forge.WEIGHT_SPREAD
    assert embedded.any(axis=1).all()


def test_a_tokens_id_is_its_byte(model: Path) -> None:
    """Printable text survives a round trip with one token per byte; special tokens follow after the bytes."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    printable = "".join(map(chr, range(32, 127)))
    assert tokenizer.encode(printable).ids == list(range(32, 127))
    assert tokenizer.decode(list(range(32, 127))) == printable
    assert tokenizer.encode("é").ids == list("é".encode())
    assert [tokenizer.token_to_id(text) for text in forge.SPECIAL] == [256, 257, 258, 259]


def test_an_adapter_fits_its_model(model: Path, tmp_path: Path) -> None:
    """Every target in every layer has A and B of the configured rank."""
    config = json.loads((model / "config.json").read_text())
    forge.make_adapter(tmp_path, config, seed=1, rank=4)
    found = shapes(tmp_path / "adapter_model.safetensors")
    layer = "base_model.model.model.layers.1"
    assert found[f"{layer}.self_attn.k_proj.lora_A.weight"] == (4, 16)
    assert found[f"{layer}.self_attn.k_proj.lora_B.weight"] == (8, 4)
    assert found[f"{layer}.mlp.down_proj.lora_A.weight"] == (4, 32)
    assert len(found) == 2 * len(forge.TARGETS) * config["num_hidden_layers"]
    reported = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (reported["r"], sorted(reported["target_modules"])) == (4, sorted(forge.TARGETS))


@pytest.mark.parametrize(
    ("changes", "queries", "keys"),
    [
        ({}, 16, 8),
        ({"head_dim": 32}, 128, 64),
        ({"head_dim": None}, 16, 8),
        ({"num_key_value_heads": 1}, 16, 4),
        ({"num_key_value_heads": 4, "head_dim": 5}, 20, 20),
    ],
)
def test_projection_sizes_follow_heads_and_head_size(changes: dict[str, Any], queries: int, keys: int) -> None:
    """An explicit head size takes precedence (Qwen3, Gemma), and key and value heads may be fewer."""
    sizes = forge.projection_sizes({**SMALL, **changes})
    assert sizes["q_proj"] == (queries, 16)
    assert sizes["k_proj"] == sizes["v_proj"] == (keys, 16)
    assert sizes["o_proj"] == (16, queries)
    assert sizes["gate_proj"] == sizes["up_proj"] == (24, 16)
    assert sizes["down_proj"] == (16, 24)


def test_without_grouped_heads_keys_are_as_many_as_queries() -> None:
    """Configurations like that of Llama 1 do not name them."""
    config = {key: value for key, value in SMALL.items() if key != "num_key_value_heads"}
    assert forge.projection_sizes(config)["k_proj"] == (16, 16)


def test_an_adapters_digest_depends_on_seed_and_rank_alone(tmp_path: Path) -> None:
    """A regenerated adapter has the same digest, and a second call reads the cache."""
    recipes = [(1, 4), (2, 4), (1, 8)]
    made = [generate_adapter(tmp_path / "one", SMALL, seed=seed, rank=rank) for seed, rank in recipes]
    assert len({files.digest for files in made}) == len(recipes)
    assert [files.recipe for files in made] == [{"seed": seed, "rank": rank} for seed, rank in recipes]
    elsewhere = generate_adapter(tmp_path / "two", SMALL, seed=1, rank=4)
    assert elsewhere.folder != made[0].folder
    assert elsewhere.digest == made[0].digest
    assert generate_adapter(tmp_path / "one", SMALL, seed=1, rank=4) == made[0]


def test_adapters_for_another_model_are_other_files(tmp_path: Path) -> None:
    """The cache depends on sizes, so that a wider model does not get the narrow model's adapters."""
    wide = {**SMALL, "hidden_size": 32}
    narrow, other = (generate_adapter(tmp_path, config, seed=1, rank=4) for config in (SMALL, wide))
    assert shapes(other.folder / ADAPTER_FILES[1]) != shapes(narrow.folder / ADAPTER_FILES[1])


@pytest.mark.parametrize("name", ADAPTER_FILES)
def test_a_digest_changes_with_any_byte(name: str, tmp_path: Path) -> None:
    """Everything that the engine reads is part of the identity."""
    files = generate_adapter(tmp_path / "cache", SMALL, seed=1, rank=4)
    target = place(files, tmp_path / "copy")
    assert digest_of(target) == files.digest
    raw = bytearray((target / name).read_bytes())
    raw[-1] ^= 1
    (target / name).write_bytes(raw)
    assert digest_of(target) != files.digest


@pytest.mark.parametrize("missing", ["hidden_size", "num_attention_heads", "num_hidden_layers", "intermediate_size"])
def test_a_model_without_generated_adapters_is_refused_with_advice(missing: str, tmp_path: Path) -> None:
    """The error names what a nested or multimodal configuration lacks, and nothing stays in the cache."""
    config = {key: value for key, value in SMALL.items() if key != missing}
    with pytest.raises(AdapterError, match=f"{missing}.*--adapter"):
        generate_adapter(tmp_path, config, seed=1, rank=4)
    assert list(tmp_path.rglob("*.safetensors")) == []


def test_a_size_that_is_no_number_is_refused(tmp_path: Path) -> None:
    """Some configurations have a list with one size per layer."""
    with pytest.raises(AdapterError, match="intermediate_size"):
        generate_adapter(tmp_path, {**SMALL, "intermediate_size": [24, 48]}, seed=1, rank=4)


@pytest.mark.parametrize("missing", ADAPTER_FILES)
def test_a_folder_without_an_adapters_files_is_refused(missing: str, tmp_path: Path) -> None:
    """The error names folder and file, and what --adapter expects."""
    folder = place(generate_adapter(tmp_path / "cache", SMALL, seed=1, rank=4), tmp_path / "mine")
    (folder / missing).unlink()
    with pytest.raises(AdapterError, match=f"{folder} is not a PEFT LoRA adapter: cannot read {missing}"):
        brought(folder)


def test_placing_a_content_replaces_what_was_there(tmp_path: Path) -> None:
    """The path has one content at a time, no temporary file stays, and the source is unchanged."""
    one, two = (generate_adapter(tmp_path / "cache", SMALL, seed=seed, rank=4) for seed in (1, 2))
    target = tmp_path / "path"
    for files in (one, two, one):
        assert place(files, target) == target.resolve()
        assert digest_of(target) == files.digest
        assert sorted(path.name for path in target.iterdir()) == sorted(ADAPTER_FILES)
    assert digest_of(two.folder) == two.digest


def test_the_tiny_model_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second call finds the folder, and an incomplete one is never found."""
    made: list[Path] = []

    def make(folder: Path, *, seed: int) -> None:
        assert seed == 0  # the weights of the start
        made.append(folder)
        folder.mkdir(parents=True)

    monkeypatch.setitem(MAKERS, ModelLayers.FULL, make)
    assert tiny_model(tmp_path) == tiny_model(tmp_path)
    assert len(made) == 1
    assert made[0] != tiny_model(tmp_path)
