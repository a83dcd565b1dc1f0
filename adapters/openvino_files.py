"""Writes a tiny model as OpenVINO reads it: an IR of the Qwen2 decoder that Coldproof makes itself, in float32.

OpenVINO GenAI reads GGUF files too, with weights in half precision only; here they stay what they are, so that answers
can be compared with other engines'. Only the shape of the graph is fixed by the engine: it looks for keys and values
that are kept in variables, and for attention over them, and puts its paged attention in their place. LoRA tensors find
the products that they change by name, so each is called as its module. Adapters need no translation: the engine reads
PEFT's safetensors files. Stand-alone reproducers carry a copy of this source, which therefore imports nothing of ours.
"""

from __future__ import annotations

import importlib
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MODEL_TYPE = "qwen2"
MODEL_FILE, CONFIG_FILE = "openvino_model.xml", "config.json"
DYNAMIC = -1
TO_HEADS = (0, 2, 1, 3)  # batch, token, head, feature <-> batch, head, token, feature


class NotTranslated(Exception):
    """A model that is none of ours; the message says so."""


def write_model(source: Path, target: Path) -> None:
    """Write the model in `source` (config.json, model.safetensors) into a folder. Raises NotTranslated for one of
    another shape.
    """
    config = json.loads((source / CONFIG_FILE).read_text())
    if config.get("model_type") != MODEL_TYPE:
        raise NotTranslated(f"only Qwen2-shaped models are written as IR, and {source} is a {config.get('model_type')}")
    target.mkdir(parents=True, exist_ok=True)
    (target / CONFIG_FILE).write_text(json.dumps(config))
    made = Decoder(config, arrays(source / "model.safetensors")).model()
    importlib.import_module("openvino").save_model(made, target / MODEL_FILE, compress_to_fp16=False)


def arrays(file: Path) -> dict[str, Any]:
    """A safetensors file's float32 tensors. Raises NotTranslated for others."""
    raw, numpy = file.read_bytes(), importlib.import_module("numpy")
    start = 8 + struct.unpack("<Q", raw[:8])[0]
    found = {}
    for name, facts in json.loads(raw[8:start]).items():
        if name == "__metadata__":
            continue
        if facts["dtype"] != "F32":
            raise NotTranslated(f"{file} holds {name!r} as {facts['dtype']}, not as F32")
        first, end = (start + offset for offset in facts["data_offsets"])
        found[name] = numpy.frombuffer(raw[first:end], dtype="<f4").reshape(facts["shape"])
    return found


class Decoder:
    """The graph in the making. `weights`: arrays by their names in the safetensors file."""

    def __init__(self, config: Mapping[str, Any], weights: Mapping[str, Any]) -> None:
        self.op = importlib.import_module("openvino.opset13")
        self.openvino = importlib.import_module("openvino")
        self.numpy = importlib.import_module("numpy")
        self.config, self.weights = config, weights
        self.heads: int = config["num_attention_heads"]
        self.kept_heads: int = config["num_key_value_heads"]
        self.head: int = config["hidden_size"] // self.heads
        whole = self.openvino.PartialShape([DYNAMIC, DYNAMIC])
        self.tokens = self.parameter("input_ids", whole, self.numpy.int64)
        self.seen = self.parameter("attention_mask", whole, self.numpy.int64)
        self.places = self.parameter("position_ids", whole, self.numpy.int64)
        self.beams = self.parameter("beam_idx", self.openvino.PartialShape([DYNAMIC]), self.numpy.int32)
        self.batch = self.op.gather(self.op.shape_of(self.tokens), self.integers(0), self.integer(0))
        self.cosine, self.sine = self.rotation()
        self.mask = self.causal_mask()
        self.kept: list[Any] = []

    def model(self) -> Any:
        """The whole: embedding, layers, output."""
        table = self.constant("model.embed_tokens.weight")
        hidden = self.op.gather(table, self.op.convert(self.tokens, "i32"), self.integer(0))
        for layer in range(self.config["num_hidden_layers"]):
            hidden = self.layer(f"model.layers.{layer}", layer, hidden)
        hidden = self.norm("model.norm", hidden)
        logits = self.op.result(self.linear("lm_head", hidden))
        logits.output(0).set_names({"logits"})
        inputs = [self.tokens, self.seen, self.places, self.beams]
        return self.openvino.Model(results=[logits], sinks=self.kept, parameters=inputs, name=MODEL_TYPE)

    def layer(self, name: str, number: int, hidden: Any) -> Any:
        """One layer: attention and a gated product, each added to what came in."""
        hidden = self.op.add(hidden, self.attention(name, number, self.norm(f"{name}.input_layernorm", hidden)))
        inner = self.norm(f"{name}.post_attention_layernorm", hidden)
        gate = self.op.swish(self.linear(f"{name}.mlp.gate_proj", inner))
        product = self.op.multiply(gate, self.linear(f"{name}.mlp.up_proj", inner))
        return self.op.add(hidden, self.linear(f"{name}.mlp.down_proj", product))

    def attention(self, name: str, number: int, hidden: Any) -> Any:
        """Attention over the keys and values that are kept."""
        query, key, value = (
            self.split(self.linear(f"{name}.self_attn.{part}_proj", hidden), heads)
            for part, heads in (("q", self.heads), ("k", self.kept_heads), ("v", self.kept_heads))
        )
        keys = self.keep(f"past_key_values.{number}.keypresent.{number}.key", self.rotated(key))
        values = self.keep(f"past_key_values.{number}.valuepresent.{number}.value", value)
        seen = self.op.scaled_dot_product_attention(
            self.rotated(query), self.repeated(keys), self.repeated(values), self.mask
        )
        together = self.op.transpose(seen, self.integers(*TO_HEADS))
        joined = self.op.reshape(together, self.integers(0, 0, self.heads * self.head), special_zero=True)
        return self.linear(f"{name}.self_attn.o_proj", joined)

    def keep(self, variable: str, new: Any) -> Any:
        """Append to what a variable holds, and have it hold that from now on."""
        shape = self.op.concat([self.batch, self.integers(self.kept_heads, 0, self.head)], 0)
        nothing = self.op.broadcast(self.op.constant(0.0, dtype=self.numpy.float32), shape)
        kept = self.openvino.PartialShape([DYNAMIC, self.kept_heads, DYNAMIC, self.head])
        held = self.op.read_value(nothing, variable, self.openvino.Type.f32, kept)
        before = self.op.gather(held, self.beams, self.integer(0))
        all_of_them = self.op.concat([before, new], 2)
        self.kept.append(self.op.assign(all_of_them, variable))
        return all_of_them

    def repeated(self, kept: Any) -> Any:
        """Kept heads, each as often as there are query heads for it."""
        each = self.heads // self.kept_heads
        shape = self.op.concat([self.batch, self.integers(self.kept_heads, each, 1, self.head)], 0)
        spread = self.op.broadcast(self.op.unsqueeze(kept, self.integer(2)), shape, broadcast_spec="BIDIRECTIONAL")
        return self.op.reshape(spread, self.integers(0, self.heads, DYNAMIC, self.head), special_zero=True)

    def split(self, joined: Any, heads: int) -> Any:
        """A projection's output by heads."""
        shaped = self.op.reshape(joined, self.integers(0, 0, heads, self.head), special_zero=True)
        return self.op.transpose(shaped, self.integers(*TO_HEADS))

    def rotation(self) -> tuple[Any, Any]:
        """Cosines and sines of each token's place, for each feature of a head."""
        exponents = self.numpy.arange(0, self.head, 2, dtype=self.numpy.float32) / self.head
        speeds = (1.0 / self.config["rope_theta"] ** exponents).astype(self.numpy.float32)
        places = self.op.unsqueeze(self.op.convert(self.places, "f32"), self.integer(2))
        angles = self.op.multiply(places, self.op.constant(speeds.reshape(1, 1, -1)))
        both = self.op.concat([angles, angles], 2)
        return tuple(self.op.unsqueeze(wave, self.integer(1)) for wave in (self.op.cos(both), self.op.sin(both)))

    def rotated(self, heads: Any) -> Any:
        """Queries or keys, turned by their places."""
        first, second = self.op.split(heads, self.integer(3), 2).outputs()
        minus = self.op.multiply(second, self.op.constant(-1.0, dtype=self.numpy.float32))
        turned = self.op.concat([minus, first], 3)
        return self.op.add(self.op.multiply(heads, self.cosine), self.op.multiply(turned, self.sine))

    def causal_mask(self) -> Any:
        """Nothing sees what comes after it. Paged attention does without, but a mask is what the engine looks for."""
        count = self.op.gather(self.op.shape_of(self.seen), self.integer(1), self.integer(0))
        places = self.op.range(self.integer(0), count, self.integer(1), "i64")
        later = self.op.greater(places, self.op.unsqueeze(self.places, self.integer(2)))
        least, zero = (self.op.constant(value, dtype=self.numpy.float32) for value in (-65504.0, 0.0))
        return self.op.unsqueeze(self.op.select(later, least, zero), self.integer(1))

    def linear(self, name: str, hidden: Any) -> Any:
        """A product with a module's weights, called as the module, and its bias if it has one."""
        made = self.op.matmul(hidden, self.constant(f"{name}.weight"), False, True)
        made.set_friendly_name(name)
        return self.op.add(made, self.constant(f"{name}.bias")) if f"{name}.bias" in self.weights else made

    def norm(self, name: str, hidden: Any) -> Any:
        """Root mean square normalisation."""
        squares = self.op.power(hidden, self.op.constant(2.0, dtype=self.numpy.float32))
        mean = self.op.reduce_mean(squares, self.integers(DYNAMIC), keep_dims=True)
        tiny = self.op.constant(self.config["rms_norm_eps"], dtype=self.numpy.float32)
        scale = self.op.divide(self.op.constant(1.0, dtype=self.numpy.float32), self.op.sqrt(self.op.add(mean, tiny)))
        return self.op.multiply(self.op.multiply(hidden, scale), self.constant(f"{name}.weight"))

    def constant(self, name: str) -> Any:
        """A tensor of the file."""
        made = self.op.constant(self.weights[name])
        made.set_friendly_name(name)
        return made

    def parameter(self, name: str, shape: Any, dtype: Any) -> Any:
        """An input."""
        made = self.op.parameter(shape, dtype)
        made.set_friendly_name(name)
        made.output(0).set_names({name})
        return made

    def integer(self, value: int) -> Any:
        """A number that has no dimensions."""
        return self.op.constant(value, dtype=self.numpy.int64)

    def integers(self, *values: int) -> Any:
        """A row of numbers."""
        return self.op.constant(list(values), dtype=self.numpy.int64)
