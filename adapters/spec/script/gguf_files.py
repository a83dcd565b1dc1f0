"""Writes the generated model and adapters as GGUF files, with the standard library alone."""

from __future__ import annotations

from coldproof.adapters.common.gguf import F32, adapter_metadata, as_they_are, in_groups, token_texts, write_gguf
from coldproof.adapters.spec.script.given import (
    ADAPTERS,
    FILES,
    FOUR_BITS,
    KIND,
    METADATA,
    MODEL_FILE,
    NAMES,
    READABLE,
    VOCABULARY,
)
from coldproof.adapters.spec.script.tensors import adapter_tensors, model_tensors


def write_model(seed: int) -> None:
    """Write the model."""
    tensors = {gguf_name(name): (shape, values.tobytes()) for name, (shape, values) in model_tensors(seed).items()}
    if FOUR_BITS:
        stored = in_groups(tensors)
    else:
        stored = as_they_are(tensors)
    write_gguf(FILES / MODEL_FILE, {**METADATA, **token_texts(VOCABULARY, readable=READABLE)}, stored)


def write_adapters() -> None:
    """Write a file for each adapter."""
    for content in ADAPTERS:
        drawn = adapter_tensors(content).items()
        named = {gguf_name(name): (shape, F32, values.tobytes()) for name, (shape, values) in drawn}
        write_gguf(FILES / f"adapter-{content}.gguf", adapter_metadata(KIND, ADAPTERS[content]["rank"]), named)


def gguf_name(name: str) -> str:
    """Return the name of a tensor in a GGUF file."""
    for part, ours in NAMES.items():
        name = name.replace(part, ours)
    name, _, side = name.removeprefix("base_model.model.").partition(".lora_")
    return f"{name}.weight.lora_{side[0].lower()}" if side else name
