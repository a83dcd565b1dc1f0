"""Public bug reports of engines, by short names such as "vllm#42125"."""

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
    """Return the URL of a report such as "vllm#42125"; GitHub redirects the numbers of pull requests.

    Raises ValueError for any other text.
    """
    found = re.fullmatch(r"([\w.-]+)#([1-9]\d*)", report)
    if found is None or found[1] not in REPOSITORIES:
        raise ValueError(f"{report!r} is not a report of a known repository; use for example vllm#42125")
    return f"https://github.com/{REPOSITORIES[found[1]]}/issues/{found[2]}"
