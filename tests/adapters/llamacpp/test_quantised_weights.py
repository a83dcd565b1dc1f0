"""Weights in 4 bits: the bytes are those of llama.cpp's own quantisation, and the cell serves the right file."""

from __future__ import annotations

import importlib
import random
import struct
from pathlib import Path

import pytest
from support.start_options import start_options

from coldproof.adapters.common.gguf import in_four_bits
from coldproof.adapters.llamacpp.setup import FOUR_BITS, flags
from coldproof.adapters.llamacpp.spec import CELLS

CELL = next(cell for cell in CELLS if FOUR_BITS in cell.arguments)


def test_four_bits_are_those_of_llama_cpps_own_quantisation() -> None:
    """The bytes are equal, including groups of zeros and groups of one sign."""
    gguf, numpy = importlib.import_module("gguf"), importlib.import_module("numpy")
    source = random.Random(1)
    values = [source.gauss(0, 0.02) for _ in range(64 * 32)] + [0.0] * 32 + [source.random() for _ in range(32)]
    array = numpy.array(values, dtype="<f4").reshape(-1, 32)
    expected = gguf.quants.quantize(array, gguf.GGMLQuantizationType.Q4_0)
    assert in_four_bits(struct.pack(f"<{len(values)}f", *values)) == expected.tobytes()


@pytest.mark.parametrize(
    ("arguments", "files", "served"),
    [
        ((), (), "model.gguf"),
        ((FOUR_BITS,), (), "model-q4.gguf"),
        ((), ("model-f32.gguf", "model-quantised.gguf"), "model-f32.gguf"),
        ((FOUR_BITS,), ("model-f32.gguf", "model-quantised.gguf"), "model-quantised.gguf"),
    ],
)
def test_the_cell_chooses_the_file_of_a_model(
    tmp_path: Path, arguments: tuple[str, ...], files: tuple[str, ...], served: str
) -> None:
    """A trained model has both files, and the server never sees the option that chooses one."""
    for name in files:
        (tmp_path / name).touch()
    words = flags(start_options(CELL, *arguments, log=tmp_path / "log", model=str(tmp_path)), [], 8000)
    assert Path(words[words.index("--model") + 1]).name == served
    assert FOUR_BITS not in words
