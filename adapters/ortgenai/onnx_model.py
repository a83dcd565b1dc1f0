"""The model as ONNX, and the parameters of a generator. Coldproof's scripts contain this file."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

BUILDER, CONFIG = "onnxruntime_genai.models.builder", "genai_config.json"
CONVERT_SECONDS = 600
LONGEST = 2048  # tokens of a sequence, for which a shared buffer has room
AGAIN = "last_again"  # no option of the library: see `generator.py`
SPECULATIVE = ("ngram_size", "max_draft_tokens")  # these options are of drafts, the others of the search
ONE_THREAD = {"intra_op_num_threads": 1, "inter_op_num_threads": 1}


def convert(source: Path, target: Path, output: IO[bytes] | None, variables: Mapping[str, str]) -> None:
    """Convert a model in float32, in a process of its own: the converter imports torch.

    Raises OSError or subprocess.SubprocessError.
    """
    words = ["-i", str(source), "-o", str(target), "-p", "fp32", "-e", "cpu", "-c", str(target / "cache")]
    subprocess.run(
        [sys.executable, "-m", BUILDER, *words],
        check=True,
        stdout=output,
        stderr=subprocess.STDOUT,
        timeout=CONVERT_SECONDS,
        env=dict(variables),
    )
    config = json.loads((target / CONFIG).read_text())
    config["model"]["decoder"]["session_options"] |= ONE_THREAD
    (target / CONFIG).write_text(json.dumps(config, indent=1))


def parameters(model: Any, given: Mapping[str, Any]) -> Any:
    """Return the parameters of a greedy generator."""
    made = importlib.import_module("onnxruntime_genai").GeneratorParams(model)
    search = {name: value for name, value in given.items() if name not in (*SPECULATIVE, AGAIN)}
    made.set_search_options(do_sample=False, max_length=LONGEST, **search)
    drafts = {name: value for name, value in given.items() if name in SPECULATIVE}
    if drafts:
        made.set_speculative_options(**drafts)
    return made
