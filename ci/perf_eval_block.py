"""Run the block `coldproof:` of a perf-eval recipe: `python3 ci/perf_eval_block.py RECIPE.yaml URL RESULTS`.

vllm-project/perf-eval starts a server from a recipe and runs blocks against it. This is one more, for its lib/run.sh:

    python3 coldproof/ci/perf_eval_block.py "$WORKLOAD" "$BASE_URL" "$RESULTS_DIR"

Writes RESULTS/coldproof.json (results.json) and the report RESULTS/coldproof, and prints one line for each requirement.
The exit code is that of the run; 0 for a recipe without the block, and 4 for a block that cannot be read. The command
`coldproof` must be on the path. Needs PyYAML, as perf-eval does.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

USAGE = 4
FIELDS = {"args"}
RESERVED = {"engine-url", "json", "report-dir"}  # given by this script


def main(words: list[str]) -> int:
    """Replace this process by the run. Returns only if there is no run."""
    if len(words) != 3:
        return refuse("usage: python3 ci/perf_eval_block.py RECIPE.yaml URL RESULTS")
    recipe, url, results = Path(words[0]), words[1], Path(words[2])
    block = yaml.safe_load(recipe.read_text()).get("coldproof")
    if block is None:
        return 0
    try:
        more = list(options(block))
    except ValueError as problem:
        return refuse(f"{recipe}: {problem}")
    places = ["--json", str(results / "coldproof.json"), "--report-dir", str(results / "coldproof")]
    sys.stdout.write("--- coldproof\n")
    sys.stdout.flush()
    return os.execvp("coldproof", ["coldproof", "run", "--engine-url", url, *places, *more])


def options(block: Any) -> Iterator[str]:
    """Yield the options of a run in a block, written as perf-eval writes those of `vllm bench serve`.

    Raises ValueError for a block of another form.
    """
    if not isinstance(block, dict) or not isinstance(block.get("args") or {}, dict):
        raise ValueError("the block `coldproof` has a map `args`")
    if unknown := sorted(set(block) - FIELDS):
        raise ValueError(f"the block `coldproof` has unsupported fields {unknown}; options of a run go under `args`")
    for key, value in (block.get("args") or {}).items():
        name = str(key).lstrip("-").replace("_", "-")
        if name in RESERVED:
            raise ValueError(f"the block `coldproof` cannot set --{name}")
        for one in value if isinstance(value, list) else [value]:
            if one is True:
                yield f"--{name}"
            elif one is not None and one is not False:
                yield f"--{name}={one}"


def refuse(line: str) -> int:
    """Write why there is no run."""
    sys.stderr.write(f"{line}\n")
    return USAGE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
