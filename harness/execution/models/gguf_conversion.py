"""Convert a GGUF file to float32: `python gguf_conversion.py FILE.gguf`. The results are written beside the file.

Transformers reads the model and its tokenizer and writes a Hugging Face folder. `model-f32.gguf` has the same values
for llama.cpp, and `model-quantised.gguf` the weights as they were published. Runs by its path, in a process of its own,
because importing torch takes seconds and memory; it imports nothing of Coldproof.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FLOAT_GGUF, SAME_GGUF = "model-f32.gguf", "model-quantised.gguf"
END = "tokenizer.ggml.eos_token_id"


def write_folder(source: Path) -> None:
    """Write config.json, model.safetensors and the tokenizer."""
    transformers = importlib.import_module("transformers")
    name = {"gguf_file": source.name}
    how = transformers.GgufConfig(dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        source.parent, dtype="float32", quantization_config=how, **name
    )
    model.save_pretrained(source.parent, max_shard_size="100GB")  # one file: adapters and other engines read it
    (source.parent / "model.safetensors").chmod(0o644)  # a server that another user runs reads it too
    transformers.AutoTokenizer.from_pretrained(source.parent, **name).save_pretrained(source.parent)


def write_gguf(source: Path, target: Path, *, float32: bool) -> None:
    """Write the same model with placeholder texts for its tokens, and all tensors in float32 or as they are.

    llama.cpp leaves tokens out of its streams until the text is valid UTF-8, so that the token ids of an answer would
    be incomplete wherever a character takes several tokens. Requests use token ids, so no text is needed.
    """
    gguf = importlib.import_module("gguf")
    reader = gguf.GGUFReader(source)
    fields = {name: field for name, field in reader.fields.items() if not name.startswith(("GGUF.", "tokenizer."))}
    writer = gguf.GGUFWriter(target, fields.pop(gguf.Keys.General.ARCHITECTURE).contents())
    for name, field in fields.items():
        items = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        all_f32 = float32 and name == gguf.Keys.General.FILE_TYPE
        value = int(gguf.LlamaFileType.ALL_F32) if all_f32 else field.contents()
        writer.add_key_value(name, value, field.types[0], items)
    add_placeholders(writer, reader.fields)
    for tensor in reader.tensors:
        if float32:
            writer.add_tensor(tensor.name, gguf.dequantize(tensor.data, tensor.tensor_type).astype("float32"))
        else:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_placeholders(writer: Any, fields: Mapping[str, Any]) -> None:
    """Add a tokenizer with a text for each token id, and the special tokens of the published one."""
    count = len(fields["tokenizer.ggml.tokens"].data)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([f"t{number}" for number in range(count)])
    writer.add_token_types([1] * count)
    writer.add_token_merges(["t 0"])  # llama.cpp refuses an empty list
    writer.add_add_bos_token(False)
    if END in fields:
        writer.add_eos_token_id(int(fields[END].contents()))


if __name__ == "__main__":
    published = Path(sys.argv[1])
    write_folder(published)
    write_gguf(published, published.parent / FLOAT_GGUF, float32=True)
    write_gguf(published, published.parent / SAME_GGUF, float32=False)
