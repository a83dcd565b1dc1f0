"""Writes the generated model and adapters with the packages of an engine that runs on torch.

They are the same as those of `adapters/common/tiny_model.py`, which a test shows: each tensor is drawn by its name.
"""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from coldproof.adapters.common.tiny_model import CHAT_TEMPLATE, PRINTABLE, SPECIAL, WEIGHT_SPREAD, byte_alphabet, draw
from coldproof.adapters.common.vision_model import PIXEL_SPREAD
from coldproof.adapters.spec.script.given import ADAPTERS, FILES, IMAGES, MODEL, OWN_ADAPTERS


def drawn(label: str, shape: tuple[int, ...], spread: float) -> torch.Tensor:
    """Return a tensor of random draws, which follow from the label."""
    return torch.frombuffer(draw(label, shape, spread), dtype=torch.float32).reshape(shape)


def write_model(folder: Path, seed: int) -> None:
    """Write a model with random weights, whose greedy answers are printable."""
    transformers: Any = importlib.import_module("transformers")
    config = transformers.AutoConfig.for_model(**MODEL)
    if IMAGES:
        model = transformers.AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    else:
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for name, weights in model.state_dict().items():
        if "norm" not in name or name.endswith("bias"):
            if IMAGES:
                spread = PIXEL_SPREAD if "patch_embedding" in name else WEIGHT_SPREAD
                weights.copy_(drawn(f"seeing model {seed} {name}", weights.shape, spread))
            else:
                weights.copy_(drawn(f"model {seed} {name}", weights.shape, WEIGHT_SPREAD))
    head = model.lm_head.weight.data
    head[: PRINTABLE.start], head[PRINTABLE.stop :] = 0, 0
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(MODEL))


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer: token id = byte value, then the special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    transformers: Any = importlib.import_module("transformers")
    vocabulary = {text: byte for byte, text in enumerate(byte_alphabet())}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    names = {"eos_token": SPECIAL[0], "pad_token": SPECIAL[0]}
    whole = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
    whole.chat_template = CHAT_TEMPLATE
    whole.save_pretrained(folder)


def write_lora(content: str, folder: Path) -> None:
    """Write a random LoRA adapter of all projections, over existing files."""
    recipe = {"rank": 8, "spread": 0.3, **ADAPTERS[content]}
    if OWN_ADAPTERS and "path" in recipe:
        shutil.copytree(recipe["path"], folder, dirs_exist_ok=True)
        return
    rank, tensors = recipe["rank"], {}
    for name, weights in load_file(FILES / "model" / "model.safetensors").items():
        if name.endswith("_proj.weight"):
            for side, shape in (("A", (rank, weights.shape[1])), ("B", (weights.shape[0], rank))):
                key = f"base_model.model.{name.removesuffix('.weight')}.lora_{side}.weight"
                tensors[key] = drawn(f"adapter {recipe['seed']} {rank} {key}", shape, recipe["spread"])
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": rank}
    config["target_modules"] = sorted({name.split(".")[-3] for name in tensors})
    (folder / "adapter_config.json").write_text(json.dumps(config))
