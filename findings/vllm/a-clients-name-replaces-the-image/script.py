"""vLLM 0.32.0: two images that clients give one name have one key in all caches. Exit status 1: as described."""

import sys

from PIL import Image
from vllm.multimodal.parse import MultiModalDataParser
from vllm.multimodal.processing.inputs import ProcessorInputs

hashes = []
for colour in ("red", "blue"):
    items = MultiModalDataParser().parse_mm_data({"image": [Image.new("RGB", (28, 28), colour)]})
    inputs = ProcessorInputs(prompt=[7], mm_data_items=items, mm_uuid_items={"image": ["logo"]})
    hashes += inputs.get_mm_hashes("model", "sha256")["image"]
print(f"keys of a red and a blue image: {hashes}; expected: two keys")
sys.exit(hashes[0] == hashes[1])
