"""Where engines have broken before: public reports, named in short as their own threads name them."""

from __future__ import annotations

import re

REPOSITORIES = {
    "LMCache": "LMCache/LMCache",
    "TRT": "NVIDIA/TensorRT-LLM",
    "ascend": "vllm-project/vllm-ascend",
    "kvcached": "ovg-project/kvcached",
    "llama.cpp": "ggml-org/llama.cpp",
    "llmd-router": "llm-d/llm-d-router",
    "omni": "vllm-project/vllm-omni",
    "sglang": "sgl-project/sglang",
    "vllm": "vllm-project/vllm",
    "vllm-mlx": "waybarrios/vllm-mlx",
}


def address(report: str) -> str:
    """The page of "vllm#42125". A pull request's too: its number leads there. Raises ValueError for anything else."""
    found = re.fullmatch(r"([\w.-]+)#([1-9]\d*)", report)
    if found is None or found[1] not in REPOSITORIES:
        raise ValueError(f"{report!r} is no report of a known repository, such as vllm#42125")
    return f"https://github.com/{REPOSITORIES[found[1]]}/issues/{found[2]}"
