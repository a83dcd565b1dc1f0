"""vLLM 0.32.0: images whose pixels have two types end the step that encodes both. Exit status 1: the bug."""

import sys

import torch
from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItems
from vllm.multimodal.utils import group_and_batch_mm_items


def image(pixels):  # of one request; with do_rescale and do_normalize off, a processor leaves them uint8
    fields = {"pixel_values": MultiModalFieldConfig.batched("image")}
    return MultiModalKwargsItems.from_hf_inputs({"pixel_values": pixels[None]}, fields)["image"][0]


one, other = torch.zeros(3, 28, 28, dtype=torch.uint8), torch.full((3, 28, 28), 0.5)
try:
    said = f"{len(list(group_and_batch_mm_items([image(one), image(other)])))} batches"
except TypeError as problem:
    said = str(problem)
print(f"pixels of two types in one step: {said}; expected: 2 batches")
sys.exit(said != "2 batches")
