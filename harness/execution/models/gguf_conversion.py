"""Convert a GGUF file to float32: `python gguf_conversion.py FILE.gguf`. The results are written beside the file.

Transformers reads the model and its tokenizer and writes a Hugging Face folder. `model-f32.gguf` has the same values
for llama.cpp, which otherwise computes with quantised weights. Runs by its path, in a process of its own, because
importing torch takes seconds and memory; it imports nothing of Coldproof.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

FLOAT_GGUF = "model-f32.gguf"


def write_folder(source: Path) -> None:
    """Write config.json, model.safetensors and the tokenizer."""
    transformers = importlib.import_module("transformers")
    name = {"gguf_file": source.name}
    how = transformers.GgufConfig(dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        source.parent, dtype="float32", quantization_config=how, **name
    )
    model.save_pretrained(source.parent, max_shard_size="100GB")  # one file: adapters and other engines read it
    transformers.AutoTokenizer.from_pretrained(source.parent, **name).save_pretrained(source.parent)


def write_float_gguf(source: Path) -> None:
    """Write the same model with all tensors in float32."""
    gguf = importlib.import_module("gguf")
    reader = gguf.GGUFReader(source)
    fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    architecture = fields.pop(gguf.Keys.General.ARCHITECTURE).contents()
    writer = gguf.GGUFWriter(source.parent / FLOAT_GGUF, architecture)
    for name, field in fields.items():
        add_field(gguf, writer, name, field)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, gguf.dequantize(tensor.data, tensor.tensor_type).astype("float32"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_field(gguf: Any, writer: Any, name: str, field: Any) -> None:
    """Copy a key-value pair, but say that the weights are in float32."""
    kind = field.types[0]
    of_items = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
    float32 = name == gguf.Keys.General.FILE_TYPE
    writer.add_key_value(name, int(gguf.LlamaFileType.ALL_F32) if float32 else field.contents(), kind, of_items)


if __name__ == "__main__":
    write_folder(Path(sys.argv[1]))
    write_float_gguf(Path(sys.argv[1]))
