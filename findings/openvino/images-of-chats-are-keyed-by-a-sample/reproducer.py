#!/usr/bin/env python3
"""Two chats with two pages that differ in one digit: the second one is answered about the first one's page.

Stand-alone script: needs Python 3.11 and `openvino-genai` and `openvino` and `numpy`, not Coldproof.

  python reproducer.py          runs the engine in this process, with a tiny random model in ./coldproof-files

Exit code: 1 if the bug occurs, 0 if it does not, 2 if the script could not test it.
"""

from __future__ import annotations

import array
import hashlib
import importlib
import json
import math
import os
import random
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILES = Path("coldproof-files").resolve()
PAGE = 256  # pixels in each direction: of a frame of 192 KiB, 8 of each 64 bytes are hashed
DIGITS = {"1": (2, 6, 2, 2, 2, 2, 7), "7": (7, 1, 1, 2, 2, 4, 4)}  # rows of three bits
SCALE = 5  # pixels of a digit's bit: the digit is 15 pixels wide
LEFT, TOP = 3, 100  # the columns 3 to 20 of a page, and of each further 21, are not hashed
QUESTION = "Which number is on this page? <image>" + "-" * 40


def page(digit):
    """Return a white page with one black digit."""
    numpy = importlib.import_module("numpy")
    found = numpy.full((1, PAGE, PAGE, 3), 255, dtype=numpy.uint8)
    for row, bits in enumerate(DIGITS[digit]):
        for column in range(3):
            if bits >> (2 - column) & 1:
                top, left = TOP + SCALE * row, LEFT + SCALE * column
                found[0, top : top + SCALE, left : left + SCALE] = 0
    return found


def make_pipeline(*, caching):
    """Return a pipeline."""
    genai = importlib.import_module("openvino_genai")
    scheduler = genai.SchedulerConfig()
    scheduler.enable_prefix_caching, scheduler.num_kv_blocks = caching, 128
    exact = {"KV_CACHE_PRECISION": "f32", "INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    return genai.ContinuousBatchingPipeline(str(FILES / "ir"), scheduler, "CPU", exact, {}, {})


def new_chat():
    """Return the history of a new chat, which ends with the question."""
    history = importlib.import_module("openvino_genai").ChatHistory()
    history.append({"role": "user", "content": QUESTION})
    return history


def ask(pipeline, history, image):
    """Return the answer to the last message of a history, with its image."""
    genai, openvino = importlib.import_module("openvino_genai"), importlib.import_module("openvino")
    wanted = genai.GenerationConfig()
    wanted.max_new_tokens, wanted.ignore_eos = 16, True
    (answer,) = pipeline.generate([history], images=[[openvino.Tensor(image)]], generation_config=[wanted])
    return answer.texts[0]


def wrong(*, caching):
    """Return whether the second chat's answer is not the one that a new pipeline gives."""
    alone = {digit: ask(make_pipeline(caching=caching), new_chat(), page(digit)) for digit in DIGITS}
    pipeline, first, second = make_pipeline(caching=caching), new_chat(), new_chat()
    answers = [ask(pipeline, first, page("1")), ask(pipeline, second, page("7"))]
    if alone["1"] == alone["7"] or answers[0] != alone["1"]:
        raise ValueError("the model does not see the digits, or does not repeat its answer")
    print(f"prefix caching {'on' if caching else 'off'}:")
    print(f"  page 7 alone in a new pipeline:        {alone['7']!r}")
    print(f"  page 7 in the second chat:             {answers[1]!r}")
    print(f"  page 1, in the first chat and alone:   {answers[0]!r}")
    del first, second
    again = ask(pipeline, new_chat(), page("7"))
    print(f"  page 7 once both chats are gone:       {again!r}")
    return answers[1] != alone["7"]


def main():
    """Ask in two chats, with prefix caching and without."""
    try:
        make_model(FILES / "model")
        write_vision_model(FILES / "model", FILES / "ir")
        found = [wrong(caching=caching) for caching in (False, True)]
    except Exception as problem:
        print(f"could not test: {type(problem).__name__}: {problem}")
        return 2
    print("wrong" if any(found) else "right")
    return int(any(found))


# The code below generates the model. Coldproof uses the same code.

SPECIAL = ("<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
# 0.2 instead of the usual 0.02: with small weights a random model's answers hardly depend on the context, and a wrong
# KV block would not be detected. With 0.2 one changed token changes everything after it.
WEIGHT_SPREAD = 0.2
# An adapter is as strong as the weights that it changes, so that its answers differ from the base model's at once.
ADAPTER_SPREAD = 0.3
# Greedy answers consist of these byte values only. An answer can then be read in a report, and it survives the
# conversion tokens -> text -> tokens in the next turn of a chat.
PRINTABLE = range(32, 127)
# Gemma divides attention scores by the square root of this. With normalised queries and keys a small number makes
# attention select single tokens, so that each token matters to the answer.
ATTENTION_SCALAR = 1
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def make_model(folder: Path, *, seed: int = 0, layers: int = 2, hidden: int = 128, max_tokens: int = 4096) -> None:
    """Write a folder with a random float32 Qwen2-shaped decoder and a byte-level tokenizer.

    Its greedy answers are printable ASCII and never end before `max_tokens`: see `zero_unprintable_rows`.
    """
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_act": "silu",
        "rope_theta": 10000.0,
        **common_config(layers=layers, hidden=hidden, max_tokens=max_tokens),
    }
    norms = ("input_layernorm", "post_attention_layernorm")
    write_decoder(folder, config, seed=seed, norms=norms, biased=("q_proj", "k_proj", "v_proj"))


def common_config(*, layers: int, hidden: int, max_tokens: int) -> dict[str, object]:
    """Return the config.json fields that all generated models share."""
    return {
        "hidden_size": hidden,
        "intermediate_size": hidden * 2,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 256 + len(SPECIAL),
        "max_position_embeddings": max_tokens,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "eos_token_id": 256,
        "bos_token_id": None,
    }


def write_decoder(
    folder: Path,
    config: dict[str, object],
    *,
    seed: int,
    norms: tuple[str, ...],
    head_norms: tuple[str, ...] = (),
    biased: tuple[str, ...] = (),
    norm_weight: float = 1.0,
) -> None:
    """Write the weights of the decoder that `config` describes, its configuration and its tokenizer."""
    vocabulary, hidden = integer(config, "vocab_size"), integer(config, "hidden_size")
    sizes = projection_sizes(config)
    head = sizes["q_proj"][0] // integer(config, "num_attention_heads")
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocabulary, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (vocabulary, hidden),
    }
    for layer in range(integer(config, "num_hidden_layers")):
        block = f"model.layers.{layer}"
        shapes |= {f"{block}.{norm}.weight": (hidden,) for norm in norms}
        shapes |= {f"{block}.self_attn.{norm}.weight": (head,) for norm in head_norms}
        for target, (outputs, inputs) in sizes.items():
            shapes[f"{block}.{module_of(target)}.{target}.weight"] = (outputs, inputs)
            if target in biased:
                shapes[f"{block}.{module_of(target)}.{target}.bias"] = (outputs,)
    tensors = {
        name: (shape, array.array("f", [norm_weight] * shape[0]))
        if "norm" in name
        else (shape, draw(f"model {seed} {name}", shape, WEIGHT_SPREAD))
        for name, shape in shapes.items()
    }
    write_model_files(folder, config, tensors)


def write_model_files(
    folder: Path, config: dict[str, object], tensors: dict[str, tuple[tuple[int, ...], array.array[float]]]
) -> None:
    """Write a model's folder. Only printable tokens can be its greedy answers: see `zero_unprintable_rows`."""
    zero_unprintable_rows(*tensors["lm_head.weight"])
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / "model.safetensors", tensors)
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", {"eos_token_id": 256})
    write_tokenizer(folder)


def module_of(target: str) -> str:
    """Return the module of a layer that a projection belongs to."""
    return "self_attn" if target in ("q_proj", "k_proj", "v_proj", "o_proj") else "mlp"


def write_tokenizer(folder: Path) -> None:
    """Write a byte-level tokenizer without merges: token id = byte value, then the special tokens."""
    alphabet = byte_alphabet()
    vocabulary = {alphabet[byte]: byte for byte in range(256)}
    off = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [{"id": 256 + i, "content": text, "special": True, **off} for i, text in enumerate(SPECIAL)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    model: dict[str, object] = {
        "type": "BPE",
        "vocab": vocabulary,
        "merges": [],
        **dict.fromkeys(("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix")),
        **dict.fromkeys(("fuse_unk", "byte_fallback", "ignore_merges"), False),
    }
    whole = {
        "version": "1.0",
        "model": model,
        "added_tokens": added,
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        **dict.fromkeys(("truncation", "padding", "normalizer", "post_processor")),
    }
    write_json(folder / "tokenizer.json", whole)
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": SPECIAL[0],
            "pad_token": SPECIAL[0],
            "model_max_length": 1 << 20,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    )


def byte_alphabet() -> list[str]:
    """Return GPT-2's printable character for each byte value. Printable bytes are their own character."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    stand_in = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    return [stand_in[byte] for byte in range(256)]


def projection_sizes(config: dict[str, object]) -> dict[str, tuple[int, int]]:
    """Return (outputs, inputs) of each projection that an adapter may target."""
    hidden, heads = integer(config, "hidden_size"), integer(config, "num_attention_heads")
    inner = integer(config, "intermediate_size")
    kv_heads = integer(config, "num_key_value_heads") if "num_key_value_heads" in config else heads
    head = integer(config, "head_dim") if config.get("head_dim") else hidden // heads
    return {
        "q_proj": (heads * head, hidden),
        "k_proj": (kv_heads * head, hidden),
        "v_proj": (kv_heads * head, hidden),
        "o_proj": (hidden, heads * head),
        "gate_proj": (inner, hidden),
        "up_proj": (inner, hidden),
        "down_proj": (hidden, inner),
    }


def integer(config: dict[str, object], key: str) -> int:
    """Return a size from a config.json. Raises KeyError if there is none."""
    value = config[key]
    if not isinstance(value, int):
        raise KeyError(key)
    return value


def draw(label: str, shape: tuple[int, ...], spread: float) -> array.array[float]:
    """Return float32 draws, uniform in [-spread * sqrt 3, spread * sqrt 3] (standard deviation `spread`), by label."""
    source = random.Random(hashlib.sha256(label.encode()).digest())
    table = [spread * 1.7320508 * (2 * i / 1023 - 1) for i in range(1024)]
    return array.array("f", source.choices(table, k=math.prod(shape)))


def zero_unprintable_rows(shape: tuple[int, ...], rows: array.array[float]) -> None:
    """Zero the output layer's rows of all tokens that are not printable.

    Their logit is then 0. It is never the largest, because then all 95 printable logits would have to be negative. (At
    temperature 1 about one token in ten is still unprintable or the end token.)
    """
    vocabulary, width = shape
    zeros = array.array("f", bytes(4 * width))
    for token in range(vocabulary):
        if token not in PRINTABLE:
            rows[token * width : (token + 1) * width] = zeros


def write_safetensors(path: Path, tensors: dict[str, tuple[tuple[int, ...], array.array[float]]]) -> None:
    """Write float32 tensors in the safetensors format: header length, JSON header, tensor bytes."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (shape, values) in tensors.items():
        size = 4 * len(values)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for _, values in tensors.values():
            if sys.byteorder == "big":
                values.byteswap()
            out.write(values.tobytes())


def write_json(path: Path, value: object) -> None:
    """Write a JSON file atomically."""
    scratch = path.with_name(path.name + ".new")
    scratch.write_text(json.dumps(value, indent=1, sort_keys=True))
    os.replace(scratch, path)


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
    target.mkdir(parents=True, exist_ok=True)
    (target / CONFIG_FILE).write_text(json.dumps(config))
    model = Decoder(config, load_tensors(source / "model.safetensors"), int8=int8).model()
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


SIDE, PATCH = 32, 8  # pixels
GRID = (SIDE // PATCH) ** 2
POSITIONS_OF_IMAGE = GRID + 1
WIDTH = 32  # of the vision encoder
IMAGE_TAG = "<image>"
PIXELS_SPREAD = 0.05  # 192 numbers make a patch: what they add up to is as large as the rest


class SeeingDecoder(Decoder):
    """The language model: its prompts are embeddings."""

    def prompt_input(self) -> Any:
        """Return the input for prompts: embeddings."""
        shape = self.openvino.PartialShape([DYNAMIC, DYNAMIC, self.config["hidden_size"]])
        return self.parameter("inputs_embeds", shape, self.numpy.float32)

    def embedded(self) -> Any:
        """Return the embeddings of the prompt."""
        return self.prompt


def can_see(source: Path) -> bool:
    """Return whether the model in a folder is one whose tokens are the bytes, as Coldproof generates it."""
    config = source / CONFIG_FILE
    return config.is_file() and json.loads(config.read_text()).get("vocab_size") == 256 + len(SPECIAL)


def write_vision_model(source: Path, target: Path) -> None:
    """Write the parts of the model to a folder. `source`: the folder of a generated model, which becomes the decoder.

    Raises UnsupportedModel.
    """
    config, tensors = json.loads((source / CONFIG_FILE).read_text()), load_tensors(source / "model.safetensors")
    target.mkdir(parents=True, exist_ok=True)
    save(SeeingDecoder(config, tensors).model(), target / "openvino_language_model.xml")
    numpy = importlib.import_module("numpy")
    table = numpy.concatenate([tensors[EMBEDDING], weights("image tag", 1, config["hidden_size"])])
    save(text_embeddings(table), target / "openvino_text_embeddings_model.xml")
    save(vision_encoder(config["hidden_size"]), target / "openvino_vision_embeddings_model.xml")
    for model, name in zip(tokenizer((IMAGE_TAG,)), ("tokenizer", "detokenizer"), strict=True):
        save(model, target / f"openvino_{name}.xml")
    write_json(target / "tokenizer_config.json", {"chat_template": CHAT_TEMPLATE})
    write_json(target / CONFIG_FILE, {**config, "model_type": "llava", "vision_config": {"patch_size": PATCH}})
    square = {"height": SIDE, "width": SIDE}
    middle = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}  # pixels become numbers between -1 and 1
    write_json(target / "preprocessor_config.json", {"crop_size": square, "size": {"shortest_edge": SIDE}, **middle})


def save(model: Any, file: Path) -> None:
    """Write a model with its weights as they are."""
    importlib.import_module("openvino").save_model(model, file, compress_to_fp16=False)


def weights(label: str, *shape: int, spread: float = WEIGHT_SPREAD) -> Any:
    """Return an array of random draws."""
    numpy = importlib.import_module("numpy")
    return numpy.frombuffer(draw(f"seeing {label}", shape, spread).tobytes(), dtype="<f4").reshape(shape)


def text_embeddings(table: Any) -> Any:
    """Return the model from token ids to rows of a table."""
    op, openvino, numpy = map(importlib.import_module, ("openvino.opset13", "openvino", "numpy"))
    tokens = op.parameter([DYNAMIC, DYNAMIC], numpy.int64, name="input")
    rows = op.gather(op.constant(table), op.convert(tokens, "i32"), op.constant(0, dtype=numpy.int64))
    return openvino.Model([named(op.result(rows), "inputs_embeds")], [named(tokens, "input")], "text embeddings")


def vision_encoder(hidden: int) -> Any:
    """Return the model from pixels to an embedding for each patch: a projection, attention and another projection."""
    op, openvino, numpy = map(importlib.import_module, ("openvino.opset13", "openvino", "numpy"))
    pixels = op.parameter([1, 3, SIDE, SIDE], numpy.float32, name="pixel_values")

    def product(inputs: Any, label: str, outputs: int) -> Any:
        return op.matmul(inputs, op.constant(weights(label, WIDTH, outputs)), False, False)

    kernel = op.constant(weights("patches", WIDTH, 3, PATCH, PATCH, spread=PIXELS_SPREAD))
    patches = op.convolution(pixels, kernel, [PATCH, PATCH], [0, 0], [0, 0], [1, 1])
    rows = op.reshape(patches, op.constant([1, WIDTH, GRID], dtype=numpy.int64), special_zero=False)
    rows = op.transpose(rows, op.constant([0, 2, 1], dtype=numpy.int64))
    rows = op.add(rows, op.constant(weights("positions", 1, GRID, WIDTH)))
    scores = op.softmax(op.matmul(product(rows, "query", WIDTH), product(rows, "key", WIDTH), False, True), -1)
    rows = op.add(rows, op.matmul(scores, product(rows, "value", WIDTH), False, False))
    found = named(op.result(product(rows, "projection", hidden)), "last_hidden_state")
    return openvino.Model([found], [named(pixels, "pixel_values")], "vision encoder")


def tokenizer(tags: tuple[str, ...]) -> tuple[Any, Any]:
    """Return the models from a text to token ids and back: each byte is one, and so is each special token and tag."""
    op, package, numpy = map(importlib.import_module, ("openvino.opset13", "openvino_tokenizers", "numpy"))
    tokens = [bytes([byte]) for byte in range(256)] + [text.encode() for text in (*SPECIAL, *tags)]
    # The form of RWKV's vocabularies. Its tokenizer takes the longest token that matches.
    encoder, decoder = package.build_rwkv_tokenizer([f"{i} {text!r} {len(text)}" for i, text in enumerate(tokens)])
    found = encoder.output(0).get_node().input_value(0)
    ones = op.broadcast(op.constant(numpy.int64(1)), op.shape_of(found))  # a single text has no padding
    ones.output(0).set_names({"attention_mask"})
    encoder.add_results([op.result(ones)])
    return encoder, decoder


def named(node: Any, name: str) -> Any:
    """Return an input or a result, with a name for its tensor."""
    node.output(0).set_names({name})
    return node


if __name__ == "__main__":
    sys.exit(main())
