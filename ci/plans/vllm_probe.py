"""Shows on a GPU machine, step by step, whether vLLM can compute there. Each step prints its time, or why it failed.

A failed step does not end the others, so one run says everything. The exit code is 0 if a model has answered.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

MODEL = "LLM"
LIBRARIES = ("_C_stable_libtorch", "_moe_C_stable_libtorch", "vllm_flash_attn._vllm_fa3_C")
SHOWN = ("ANSWER", "STARTED", "backend", "Model Runner", "Asynchronous", "raph")  # of an engine's log
GRAPHS = {"dtype": "bfloat16", "enforce_eager": False, "max_cudagraph_capture_size": 32}
ANSWER = """
import json, sys, time
if __name__ == "__main__":
    began = time.monotonic()
    from vllm import LLM, SamplingParams
    usual = dict(gpu_memory_utilization=0.1, kv_cache_memory_bytes=1 << 28, max_model_len=2048, enable_lora=True)
    engine = LLM(model=sys.argv[1], **{**usual, "enforce_eager": True, **json.loads(sys.argv[2])})
    print("STARTED after", round(time.monotonic() - began, 1), "s", flush=True)
    prompt, few = {"prompt_token_ids": list(range(1, 200))}, SamplingParams(max_tokens=8, temperature=0, logprobs=2)
    for turn in ("cold", "warm"):
        began = time.monotonic()
        (answer,) = engine.generate([prompt], few, use_tqdm=False)
        seconds = round(time.monotonic() - began, 2)
        print("ANSWER", turn, answer.outputs[0].token_ids, "cached", answer.num_cached_tokens, seconds, "s", flush=True)
"""
KERNEL = """
import torch, triton, triton.language as tl
@triton.jit
def add(x, y, n: tl.constexpr):
    i = tl.arange(0, n)
    tl.store(y + i, tl.load(x + i) + 1)
x = torch.ones(64, device="cuda")
y = torch.empty_like(x)
add[(1,)](x, y, 64)
print(y.sum().item())
"""


def said(*words: str, seconds: float = 30) -> str:
    """Return what a command prints. Raises RuntimeError with its end if it fails or runs too long, or OSError."""
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code: object = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            code = f"none after {seconds:.0f} s"
        finally:
            with contextlib.suppress(ProcessLookupError):  # an engine core outlives the process that is ended
                os.killpg(process.pid, signal.SIGKILL)
        output.seek(0)
        text = output.read().strip()
    if code != 0:
        raise RuntimeError(f"exit code {code}: {text[-8000:]}")
    return text


def machine() -> str:
    """Return the card, and what Triton needs to compile."""
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    compilers = {name: shutil.which(name) for name in ("cc", "gcc", "clang", "nvcc", "ptxas", "cuobjdump")}
    return f"{said('nvidia-smi')}\nPython.h: {header.is_file()}\n{compilers}\n{shutil.disk_usage('/tmp')}"


def driver_libraries() -> str:
    """Load the libraries of the driver."""
    return " ".join(str(ctypes.CDLL(name)) for name in ("libcuda.so.1", "libnvidia-ml.so.1"))


def torch_facts() -> str:
    """Return what torch sees, and compute one product."""
    import torch

    product = (torch.ones(64, 64, device="cuda") @ torch.ones(64, 64, device="cuda")).sum().item()
    return f"{torch.__version__} {torch.version.cuda} {torch.cuda.get_device_properties(0)} {product}"


def load(name: str) -> str:
    """Load one of vLLM's libraries by itself. Raises RuntimeError with what it does not find."""
    import torch  # its libraries must be loaded before
    import vllm

    path = Path(vllm.__file__).parent / f"{name.replace('.', '/')}.abi3.so"
    try:
        torch.ops.load_library(str(path))
    except OSError as problem:
        raise RuntimeError(f"{problem}\n{said('ldd', str(path))}") from problem
    return f"{path.stat().st_size:,} bytes"


def norm() -> str:
    """Run a kernel of vLLM's own, so that its device code is known to load."""
    import torch
    import vllm.platforms  # noqa: F401

    x, weight = torch.ones(4, 128, device="cuda"), torch.ones(128, device="cuda")
    out = torch.empty_like(x)
    torch.ops._C.rms_norm(out, x, weight, 1e-6)
    torch.cuda.synchronize()
    return str(out.sum().item())


def kernel() -> str:
    """Compile and run a kernel with Triton."""
    path = Path("kernel.py")
    path.write_text(KERNEL)
    return said(sys.executable, str(path), seconds=60)


def answer(seconds: float, options: dict[str, object]) -> str:
    """Start an engine in a process of its own, which answers the same prompt twice."""
    path = Path("answer.py")
    path.write_text(ANSWER)
    text = said(sys.executable, str(path), model(), json.dumps(options), seconds=seconds)
    return "\n".join(line[:300] for line in text.splitlines() if any(word in line for word in SHOWN))


def model() -> str:
    """Return the generated model with full attention in the kit's cache. Raises StopIteration without one."""
    folder = Path(os.environ["XDG_CACHE_HOME"], "coldproof", "cache")
    return str(next(one.parent for one in folder.rglob("config.json") if "Qwen2ForCausalLM" in one.read_text()))


STEPS: dict[str, Callable[[], str]] = {
    "machine": machine,
    "driver": driver_libraries,
    "torch": torch_facts,
    **{f"load {name}": partial(load, name) for name in LIBRARIES},
    "a kernel of vLLM": norm,
    "a kernel of Triton": kernel,
    f"{MODEL} bfloat16": partial(answer, 120, {"dtype": "bfloat16"}),
    f"{MODEL} float32": partial(answer, 60, {"dtype": "float32"}),
    f"{MODEL} Triton's attention": partial(answer, 60, {"dtype": "bfloat16", "attention_backend": "TRITON_ATTN"}),
    f"{MODEL} CUDA graphs": partial(answer, 120, GRAPHS),
}


def main() -> int:
    """Run all steps; return 0 if a model has answered."""
    done = []
    for name, step in STEPS.items():
        began = time.monotonic()
        try:
            result = step()
            done.append(name)
        except Exception:  # noqa: BLE001  # whatever it is, it is printed
            result = traceback.format_exc()
        state = "ok" if name in done else "FAILED"
        sys.stdout.write(f"== {name}: {state}, {time.monotonic() - began:.1f} s\n{result}\n")
        sys.stdout.flush()
    return 0 if any(name.startswith(MODEL) for name in done) else 1


if __name__ == "__main__":
    sys.exit(main())
