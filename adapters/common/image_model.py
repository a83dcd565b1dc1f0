"""A model with images for the fingerprint worker: the configuration of an Idefics3 around a model.

The folder has the weights of the decoder only, by which versions of the weights are told apart. Nobody loads them.

Its processor needs PIL only: an engine without torchvision runs it. It does not scale or split images of SIDE pixels,
so that the model gets the pixels that were sent, and each image takes IMAGE_TOKENS positions: those of its patches, two
before them and one behind them.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from pathlib import Path
from typing import Any

SIDE, PATCH = 32, 8  # pixels
GRID = (SIDE // PATCH) ** 2
DELIMITERS = 3  # positions of an image that are no patches
IMAGE_TOKENS = GRID + DELIMITERS
# The processor's names, in the order of their ids: a patch, both ends of an image, its kind, the end of a message.
NEW_TOKENS = ("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>")
WEIGHT_FILES = "*.safetensors"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
TOKEN_OPTIONS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)


def image_model(model: Path, folder: Path) -> Path:
    """Write the model's folder, unless it exists, and return it. Two engines that start together may both write it.

    `model`: the folder of a decoder, whose tokenizer gets a token more.
    """
    if folder.exists():
        return folder
    scratch = folder.with_name(f"{folder.name}.{secrets.token_hex(4)}")
    write_image_model(model, scratch)
    try:
        os.replace(scratch, folder)
    except OSError:  # another one was faster
        shutil.rmtree(scratch)
    return folder


def write_image_model(model: Path, folder: Path) -> None:
    """Write the model's files to a new folder."""
    folder.mkdir(parents=True)
    text = json.loads((model / "config.json").read_text())
    token = int(text["vocab_size"])
    for source in (*(model / name for name in TOKENIZER), *model.glob(WEIGHT_FILES)):
        if source.is_file():
            shutil.copyfile(source, folder / source.name)
    write_processor(folder, token)
    write_text(folder / "config.json", idefics3(text, token))


def write_processor(folder: Path, token: int) -> None:
    """Add the processor's tokens, of which `token` is the first, to the tokenizer in a folder, and write its files."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["added_tokens"] += [
        {"id": token + i, "content": name, "special": True, **TOKEN_OPTIONS} for i, name in enumerate(NEW_TOKENS)
    ]
    write_text(folder / "tokenizer.json", tokenizer)
    write_text(folder / "preprocessor_config.json", PREPROCESSOR)
    write_text(folder / "processor_config.json", {"processor_class": "Idefics3Processor", "image_seq_len": GRID})


def idefics3(text: dict[str, Any], image_token: int) -> dict[str, Any]:
    """Return the configuration of an Idefics3 with a decoder and a small vision tower."""
    return {
        "architectures": ["Idefics3ForConditionalGeneration"],
        "model_type": "idefics3",
        "text_config": {**text, "vocab_size": image_token + len(NEW_TOKENS)},
        "vision_config": VISION,
        "image_token_id": image_token,
        "scale_factor": 1,
        "pad_token_id": None,
        **{name: text[name] for name in ("torch_dtype", "tie_word_embeddings", "eos_token_id") if name in text},
    }


VISION: dict[str, object] = {
    "model_type": "idefics3_vision",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": SIDE,
    "patch_size": PATCH,
}
PREPROCESSOR = {
    "image_processor_type": "Idefics3ImageProcessor",
    **dict.fromkeys(("do_resize", "do_image_splitting", "do_rescale", "do_normalize"), False),
    **dict.fromkeys(("do_convert_rgb", "do_pad"), True),
    **{edge: {"longest_edge": SIDE} for edge in ("size", "max_image_size")},
}


def write_text(path: Path, value: object) -> None:
    """Write a JSON file."""
    path.write_text(json.dumps(value, indent=1, sort_keys=True))
