"""Write a tiny model that takes images as OpenVINO IR: the parts of a LLaVA around the decoder of a generated model.

OpenVINO GenAI takes images only for a model in parts: embeddings of text, a vision encoder, a language model over what
both return, and a tokenizer in its format. Of the families that it knows, LLaVA has the least around an image: an image
of SIDE pixels is not scaled, and takes the positions of its patches and of a line break, which the engine adds
(visual_language/llava/classes.cpp). The vision encoder is random, and each patch attends to all.

Each byte is a token, so that the tokens of a text are known. Stand-alone reproducers carry a copy of this file behind
those of `tiny_model.py`, `images.py` and `ir_model.py`.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coldproof.adapters.common.tiny_model import CHAT_TEMPLATE, SPECIAL, WEIGHT_SPREAD, draw, write_json
from coldproof.adapters.openvino.ir_model import CONFIG_FILE, DYNAMIC, EMBEDDING, Decoder, load_tensors
from coldproof.adapters.protocol.images import image_and_offset, is_image

SIDE, PATCH = 32, 8  # pixels
GRID = (SIDE // PATCH) ** 2
POSITIONS_OF_IMAGE = GRID + 1
WIDTH = 32  # of the vision encoder
IMAGE_TAG = "<image>"
PIXELS_SPREAD = 0.05  # 192 numbers make a patch: what they add up to is as large as the rest


def text_of_images(prompt: Sequence[int]) -> str:
    """Return a prompt as a text with a tag for each image. Each of its printable tokens is one character."""
    places = (image_and_offset(one) if is_image(one) else (one, None) for one in prompt)
    return "".join(chr(what) if offset is None else IMAGE_TAG if not offset else "" for what, offset in places)


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
    write_seeing_parts(config, tensors, target)


def write_seeing_parts(config: dict[str, Any], tensors: dict[str, Any], target: Path) -> None:
    """Write the parts of the model to a folder. `tensors`: those of the decoder."""
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
