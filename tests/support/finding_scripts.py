"""Runs hand-made scripts and regression tests of findings, each in a process of its own, with a repair or without.

The processes are forked from one that has imported the engine: importing vLLM takes longer than most scripts. That one
never imports Coldproof.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from coldproof import IMPORT_ROOT

SECONDS = 600
MODULES = {
    "llamacpp": ("gguf", "numpy", "xllamacpp"),
    "openvino": ("numpy", "openvino.opset13", "openvino_genai", "openvino_tokenizers", "safetensors.numpy"),
    "sglang": (
        "sglang.srt.entrypoints.engine",
        "sglang.srt.entrypoints.openai.serving_responses",
        "sglang.srt.entrypoints.anthropic.serving",
        "sglang.srt.session.session_controller",
    ),
    "vllm": ("vllm.entrypoints.llm", "vllm.v1.worker.cpu_model_runner", "vllm.v1.engine.core"),
    "transformers": ("torch", "transformers.models.llama.modeling_llama", "transformers.generation.utils"),
}
ENVIRONMENT = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "UCX_TLS": "tcp,sm,self",  # without a network card of its own, UCX takes long to give up
}
# Each line of its input is a job. A child leaves the loop and ends as a script ends.
FORKING = """
import contextlib, gc, importlib, json, os, pathlib, runpy, signal, sys, tempfile

for name in sys.argv[2:]:
    importlib.import_module(name)
gc.freeze()  # a child that collects what it shares ends only after eight seconds of CPU time
for line in sys.stdin:
    job = json.loads(line)
    sys.stdout.flush()
    if child := os.fork():
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    signal.alarm(job["seconds"])
    output = os.open(job["output"], os.O_CREAT | os.O_WRONLY)
    os.dup2(output, 1), os.dup2(output, 2), os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(job["folder"])
    tempfile.tempdir = os.environ["TMPDIR"] = job["folder"]
    around = contextlib.nullcontext()
    if job["repair"]:
        sys.path.insert(0, sys.argv[1])
        from coldproof.adapters.registry import ENGINES
        from coldproof.adapters.sglang import repairs as sglang
        from coldproof.adapters.spec.repair import plant
        repair = pathlib.Path(job["repair"])
        plant([repair])
        # Further processes of the engine plant it as they start.
        support = ENGINES[repair.parts[-3]].repairs or sglang
        around = support.planted([repair], pathlib.Path(job["folder"], "plugins"))
    sys.argv = [job["script"]]
    with around:
        if job["script"].endswith("_test.py"):
            words = ["-q", "-p", "no:cacheprovider", "--noconftest", "-c", os.devnull, job["script"]]
            sys.exit(importlib.import_module("pytest").main(words))
        runpy.run_path(job["script"], run_name="__main__")
    break
"""


class Ended(NamedTuple):
    """How a script ended: its exit code, negative for a signal, and what it wrote."""

    code: int
    output: str


class Scripts:
    """A process that has imported an engine and forks for each script. Close it."""

    def __init__(self, engine: str) -> None:
        words = [sys.executable, "-c", FORKING, IMPORT_ROOT, *MODULES[engine]]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | ENVIRONMENT
        self.process = subprocess.Popen(
            words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def run(self, script: Path, folder: Path, repair: Path | None = None) -> Ended:
        """Run a script as the main program, or a regression test with pytest, in a folder, which must be new.

        `repair`: planted into the engines that it starts.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        folder.mkdir()
        output = folder / "output.txt"
        job = {"script": str(script), "folder": str(folder), "output": str(output), "seconds": SECONDS}
        self.process.stdin.write(json.dumps({**job, "repair": str(repair or "")}) + "\n")
        self.process.stdin.flush()
        return Ended(int(self.process.stdout.readline()), output.read_text(errors="replace"))

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(SECONDS)
