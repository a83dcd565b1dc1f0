"""Writes a Qwen2- or Llama-shaped model as OpenVINO IR, in float32 or with weights in 8 bits.

OpenVINO GenAI also reads GGUF files, but only in half precision. Float32 weights keep answers comparable with other
engines. The engine expects a certain form of the graph: it replaces attention over keys and values in state variables
by its paged attention. It applies LoRA tensors to products by name, so each product has the name of its module.
Adapters need no conversion: the engine reads PEFT's safetensors files. Stand-alone reproducers contain `Decoder`.
"""

from __future__ import annotations

import importlib
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MODEL_TYPES = ("qwen2", "llama")
MODEL_FILE, CONFIG_FILE = "openvino_model.xml", "config.json"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
DYNAMIC = -1
TO_HEADS = (0, 2, 1, 3)  # batch, token, head, feature <-> batch, head, token, feature


class UnsupportedModel(Exception):
    """The model cannot be written as IR. The message has the reason."""


def write_model(source: Path, target: Path, *, int8: bool = False) -> None:
    """Write the model in `source` (config.json, model.safetensors) to a folder. Raises UnsupportedModel.

    `int8`: with the weights of all products in 8 bits.
    """
    config = json.loads((source / CONFIG_FILE).read_text())
    if config.get("model_type") not in MODEL_TYPES:
        raise UnsupportedModel(
            f"only {' and '.join(MODEL_TYPES)} models are written as IR, and {source} is a {config.get('model_type')}"
        )
    write_decoder(config, load_tensors(source / "model.safetensors"), target, int8=int8)


def write_decoder(config: Mapping[str, Any], weights: Mapping[str, Any], target: Path, *, int8: bool = False) -> None:
    """Write a model to a folder. `weights`: arrays by their names in the safetensors file."""
    target.mkdir(parents=True, exist_ok=True)
    (target / CONFIG_FILE).write_text(json.dumps(config))
    model = Decoder(config, weights, int8=int8).model()
    importlib.import_module("openvino").save_model(model, target / MODEL_FILE, compress_to_fp16=False)


def load_tensors(file: Path) -> dict[str, Any]:
    """Return the tensors of a safetensors file by name. Raises UnsupportedModel if one is not float32."""
    raw, numpy = file.read_bytes(), importlib.import_module("numpy")
    start = 8 + struct.unpack("<Q", raw[:8])[0]
    found = {}
    for name, facts in json.loads(raw[8:start]).items():
        if name == "__metadata__":
            continue
        if facts["dtype"] != "F32":
            raise UnsupportedModel(f"{file} holds {name!r} as {facts['dtype']}, not as F32")
        first, end = (start + offset for offset in facts["data_offsets"])
        found[name] = numpy.frombuffer(raw[first:end], dtype="<f4").reshape(facts["shape"])
    return found


class Decoder:
    """Builds the graph of the model. `weights`: arrays by their names in the safetensors file."""

    def __init__(self, config: Mapping[str, Any], weights: Mapping[str, Any], *, int8: bool = False) -> None:
        self.op, self.openvino, self.numpy = map(importlib.import_module, ("openvino.opset13", "openvino", "numpy"))
        self.config, self.int8 = config, int8
        self.weights = {HEAD: weights[EMBEDDING], **weights}  # without a head of its own, the embedding's table serves
        self.heads: int = config["num_attention_heads"]
        self.kv_heads: int = config["num_key_value_heads"]
        self.head: int = config["hidden_size"] // self.heads
        whole = self.openvino.PartialShape([DYNAMIC, DYNAMIC])
        self.prompt = self.prompt_input()
        self.attention_mask = self.parameter("attention_mask", whole, self.numpy.int64)
        self.positions = self.parameter("position_ids", whole, self.numpy.int64)
        self.beams = self.parameter("beam_idx", self.openvino.PartialShape([DYNAMIC]), self.numpy.int32)
        self.batch = self.op.gather(self.op.shape_of(self.prompt), self.integers(0), self.integer(0))
        self.cosine, self.sine = self.rotation()
        self.mask = self.causal_mask()
        self.assignments: list[Any] = []

    def model(self) -> Any:
        """Return the model: embedding, layers, output."""
        hidden = self.embedded()
        for layer in range(self.config["num_hidden_layers"]):
            hidden = self.layer(f"model.layers.{layer}", layer, hidden)
        hidden = self.norm("model.norm", hidden)
        logits = self.op.result(self.linear("lm_head", hidden))
        logits.output(0).set_names({"logits"})
        inputs = [self.prompt, self.attention_mask, self.positions, self.beams]
        return self.openvino.Model(
            results=[logits], sinks=self.assignments, parameters=inputs, name=self.config["model_type"]
        )

    def prompt_input(self) -> Any:
        """Return the input for prompts: token ids."""
        return self.parameter("input_ids", self.openvino.PartialShape([DYNAMIC, DYNAMIC]), self.numpy.int64)

    def embedded(self) -> Any:
        """Return the embeddings of the prompt."""
        return self.op.gather(self.constant(EMBEDDING), self.op.convert(self.prompt, "i32"), self.integer(0))

    def layer(self, name: str, number: int, hidden: Any) -> Any:
        """Return the output of one layer: attention and a gated MLP, both with residual connections."""
        hidden = self.op.add(hidden, self.attention(name, number, self.norm(f"{name}.input_layernorm", hidden)))
        inner = self.norm(f"{name}.post_attention_layernorm", hidden)
        gate = self.op.swish(self.linear(f"{name}.mlp.gate_proj", inner))
        product = self.op.multiply(gate, self.linear(f"{name}.mlp.up_proj", inner))
        return self.op.add(hidden, self.linear(f"{name}.mlp.down_proj", product))

    def attention(self, name: str, number: int, hidden: Any) -> Any:
        """Return the output of the attention over all keys and values so far."""
        query, key, value = (
            self.split(self.linear(f"{name}.self_attn.{part}_proj", hidden), heads)
            for part, heads in (("q", self.heads), ("k", self.kv_heads), ("v", self.kv_heads))
        )
        keys = self.keep(f"past_key_values.{number}.keypresent.{number}.key", self.rotate(key))
        values = self.keep(f"past_key_values.{number}.valuepresent.{number}.value", value)
        attention = self.op.scaled_dot_product_attention(
            self.rotate(query), self.repeat_heads(keys), self.repeat_heads(values), self.mask
        )
        together = self.op.transpose(attention, self.integers(*TO_HEADS))
        joined = self.op.reshape(together, self.integers(0, 0, self.heads * self.head), special_zero=True)
        return self.linear(f"{name}.self_attn.o_proj", joined)

    def keep(self, variable: str, new: Any) -> Any:
        """Append keys or values to a state variable, and return the variable's new content."""
        shape = self.op.concat([self.batch, self.integers(self.kv_heads, 0, self.head)], 0)
        nothing = self.op.broadcast(self.op.constant(0.0, dtype=self.numpy.float32), shape)
        kept = self.openvino.PartialShape([DYNAMIC, self.kv_heads, DYNAMIC, self.head])
        stored = self.op.read_value(nothing, variable, self.openvino.Type.f32, kept)
        before = self.op.gather(stored, self.beams, self.integer(0))
        extended = self.op.concat([before, new], 2)
        self.assignments.append(self.op.assign(extended, variable))
        return extended

    def repeat_heads(self, kept: Any) -> Any:
        """Return the key or value heads, each repeated for its query heads."""
        each = self.heads // self.kv_heads
        shape = self.op.concat([self.batch, self.integers(self.kv_heads, each, 1, self.head)], 0)
        spread = self.op.broadcast(self.op.unsqueeze(kept, self.integer(2)), shape, broadcast_spec="BIDIRECTIONAL")
        return self.op.reshape(spread, self.integers(0, self.heads, DYNAMIC, self.head), special_zero=True)

    def split(self, joined: Any, heads: int) -> Any:
        """Return a projection's output, split into heads."""
        shaped = self.op.reshape(joined, self.integers(0, 0, heads, self.head), special_zero=True)
        return self.op.transpose(shaped, self.integers(*TO_HEADS))

    def rotation(self) -> tuple[Any, Any]:
        """Return the cosines and sines of the rotary embedding, for each position and each feature of a head."""
        exponents = self.numpy.arange(0, self.head, 2, dtype=self.numpy.float32) / self.head
        theta = self.config.get("rope_theta") or self.config["rope_parameters"]["rope_theta"]
        speeds = (1.0 / theta**exponents).astype(self.numpy.float32)
        positions = self.op.unsqueeze(self.op.convert(self.positions, "f32"), self.integer(2))
        angles = self.op.multiply(positions, self.op.constant(speeds.reshape(1, 1, -1)))
        both = self.op.concat([angles, angles], 2)
        return tuple(self.op.unsqueeze(wave, self.integer(1)) for wave in (self.op.cos(both), self.op.sin(both)))

    def rotate(self, heads: Any) -> Any:
        """Return queries or keys with the rotary embedding applied."""
        first, second = self.op.split(heads, self.integer(3), 2).outputs()
        minus = self.op.multiply(second, self.op.constant(-1.0, dtype=self.numpy.float32))
        turned = self.op.concat([minus, first], 3)
        return self.op.add(self.op.multiply(heads, self.cosine), self.op.multiply(turned, self.sine))

    def causal_mask(self) -> Any:
        """Return a causal mask. Paged attention does not use it, but the engine looks for it in the graph."""
        count = self.op.gather(self.op.shape_of(self.attention_mask), self.integer(1), self.integer(0))
        positions = self.op.range(self.integer(0), count, self.integer(1), "i64")
        later = self.op.greater(positions, self.op.unsqueeze(self.positions, self.integer(2)))
        least, zero = (self.op.constant(value, dtype=self.numpy.float32) for value in (-65504.0, 0.0))
        return self.op.unsqueeze(self.op.select(later, least, zero), self.integer(1))

    def linear(self, name: str, hidden: Any) -> Any:
        """Return the product with a module's weights, named as the module, plus its bias if it has one."""
        weights = self.rounded(f"{name}.weight") if self.int8 else self.constant(f"{name}.weight")
        node = self.op.matmul(hidden, weights, False, True)
        node.set_friendly_name(name)
        return self.op.add(node, self.constant(f"{name}.bias")) if f"{name}.bias" in self.weights else node

    def norm(self, name: str, hidden: Any) -> Any:
        """Return the input after root mean square normalisation."""
        squares = self.op.power(hidden, self.op.constant(2.0, dtype=self.numpy.float32))
        mean = self.op.reduce_mean(squares, self.integers(DYNAMIC), keep_dims=True)
        tiny = self.op.constant(self.config["rms_norm_eps"], dtype=self.numpy.float32)
        scale = self.op.divide(self.op.constant(1.0, dtype=self.numpy.float32), self.op.sqrt(self.op.add(mean, tiny)))
        return self.op.multiply(self.op.multiply(hidden, scale), self.constant(f"{name}.weight"))

    def constant(self, name: str) -> Any:
        """Return a weight as a constant."""
        node = self.op.constant(self.weights[name])
        node.set_friendly_name(name)
        return node

    def rounded(self, name: str) -> Any:
        """Return a weight as 8-bit integers and a scale for each row, the form in which the engine keeps them."""
        values = self.weights[name]
        scale = self.numpy.maximum(self.numpy.abs(values).max(axis=1, keepdims=True) / 127, 1e-12)
        whole = self.op.constant(self.numpy.round(values / scale).astype(self.numpy.int8))
        return self.op.multiply(self.op.convert(whole, "f32"), self.op.constant(scale.astype(self.numpy.float32)))

    def parameter(self, name: str, shape: Any, dtype: Any) -> Any:
        """Return an input of the model."""
        node = self.op.parameter(shape, dtype)
        node.set_friendly_name(name)
        node.output(0).set_names({name})
        return node

    def integer(self, value: int) -> Any:
        """Return an integer scalar."""
        return self.op.constant(value, dtype=self.numpy.int64)

    def integers(self, *values: int) -> Any:
        """Return a vector of integers."""
        return self.op.constant(list(values), dtype=self.numpy.int64)
