"""What a start of SGLang's server on a CPU needs: flags, variables, and a stand-in for its kernels."""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from coldproof.adapters.common.process import python_path
from coldproof.adapters.spec.engine_spec import StartOptions

START_SECONDS = 600.0
SERVER = "sglang.launch_server"
PAGE, POOL, CHUNK, CONTEXT = "--page-size", "--max-total-tokens", "--chunked-prefill-size", "--context-length"
SIZES = {PAGE: "16", POOL: "8192", CHUNK: "1024", CONTEXT: "2048"}
IN_TURN = "--disable-overlap-schedule"
WITHOUT_CACHE = "--disable-radix-cache"
CANARY = "--kv-canary"  # what its flags begin with; each has a value
ON_CPU = ("--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch")
REPORTS = ("--enable-metrics", "--load-snapshot-publish-interval", "1", "--enable-cache-report")
FEATURES = ("--enable-priority-scheduling", "--enable-streaming-session")
# Else each idle scheduler of a run (tested, cold and fresh) takes half a core or more.
IDLE = ("--sleep-on-idle",)
# SGLang's own kernels for adapters need a GPU.
LORA = ("--enable-lora", "--max-lora-rank", "16", "--lora-target-modules", "all", "--max-loras-per-batch", "4")
LORA_ON_CPU = ("--lora-backend", "torch_native")
PROGRAM = re.compile(rf"^(\w+=\w+ )*python -m {re.escape(SERVER)}")  # what a started server's command begins with
VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*=")  # a word of a cell that is no flag
# One thread, no look at a model hub, and the parts of SGLang for CPUs.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "SGLANG_USE_CPU_ENGINE": "1"}
KERNELS, STAND_INS = "sgl_kernel", Path(__file__).with_name("cpu")


class Corruption(msgspec.Struct, frozen=True):
    """A fault: variables with which a server corrupts its own KV. `listing`: a file for the names of its logs."""

    variables: dict[str, str]
    listing: Path | None = None

    def list_log(self, log: Path) -> None:
        """Add the log of a server with this fault."""
        if self.listing is not None:
            with self.listing.open("a") as listing:
                listing.write(f"{log}\n")


corruption: Corruption | None = None  # of every engine with a cache that starts


def variables(arguments: Sequence[str]) -> dict[str, str]:
    """Return the variables among the words of a cell."""
    found = (word.partition("=") for word in arguments if VARIABLE.match(word))
    return {name: value for name, _, value in found}


def flags(options: StartOptions, port: int) -> list[str]:
    """Return all flags of the server. Those of the cell and of the user win over the usual sizes."""
    arguments = [word for word in options.arguments if not VARIABLE.match(word)]
    if not options.caching:  # it has no cached KV to check
        checks = {at for at, word in enumerate(arguments) if word.startswith(CANARY)}
        arguments = [word for at, word in enumerate(arguments) if at not in checks and at - 1 not in checks]
    words = ["--model-path", options.model, "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"]
    words += [*ON_CPU, *IDLE, *REPORTS, *FEATURES, *(LORA + LORA_ON_CPU if options.adapters else ())]
    words += [word for flag, size in SIZES.items() if flag not in arguments for word in (flag, size)]
    return [*words, *arguments, *([] if options.caching else [WITHOUT_CACHE])]


def command(words: Sequence[str]) -> list[str]:
    """Return the command of the server in this Python's environment."""
    return [sys.executable, "-m", SERVER, *words]


def printed(options: StartOptions, words: Sequence[str]) -> str:
    """Return the command as text, with its variables."""
    set_before = " ".join(f"{name}={value}" for name, value in {**ENVIRONMENT, **variables(options.arguments)}.items())
    return f"{set_before} python -m {SERVER} {shlex.join(words)}"


def environment(options: StartOptions, base: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the server. Without SGLang's kernels, the stand-in is on its import path."""
    found = {**ENVIRONMENT, **base, **variables(options.arguments)}
    if corruption is not None and options.caching:
        found |= corruption.variables
    if importlib.util.find_spec(KERNELS) is None:
        found["PYTHONPATH"] = python_path(STAND_INS)
    return found
