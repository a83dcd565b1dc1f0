"""Starts an SGLang server with repairs: SGLang calls `plant_chosen` in each of its processes, as all general plugins.

    python -m coldproof.adapters.sglang.repairs NAME,... -- --model-path MODEL --port 30000

It needs Coldproof in the environment of SGLang. Exit code 2: a repair is unknown, or for another release.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import runpy
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from coldproof import IMPORT_ROOT
from coldproof.adapters.common.entry_points import entry_point
from coldproof.adapters.spec.repair import RepairError, plant, read_repair

FILES, KNOWN = "COLDPROOF_REPAIRS", "known"
GROUP, ENTRY_POINT = "sglang.srt.plugins", "coldproof.adapters.sglang.repairs:plant_chosen"
SERVER = "sglang.launch_server"
FINDINGS = Path(IMPORT_ROOT, "coldproof", "findings", "sglang")


def plant_chosen() -> None:
    """Plant the repairs whose files the environment names into this process, each once.

    Ends the process if one does not fit this SGLang, which would log an exception and go on without the repair.
    """
    if chosen := os.environ.get(FILES):
        try:
            plant(map(Path, chosen.split(os.pathsep)))
        except RepairError as problem:
            raise SystemExit(f"coldproof: {problem}") from problem


@contextlib.contextmanager
def planted(files: Sequence[Path], folder: Path) -> Iterator[None]:
    """Plant repairs into every engine that starts in this context. Their entry point is written to `folder`."""
    variables = {FILES: os.pathsep.join(map(str, files))}
    with entry_point(folder, GROUP, "coldproof_repairs", ENTRY_POINT, variables):
        yield


def files_of(text: str, release: str) -> list[Path]:
    """Return the files of repairs by the names of their findings, `known` for all of a release. Raises RepairError."""
    repairs = {path.parent.name: read_repair(path) for path in sorted(FINDINGS.glob("*/repair.py"))}
    names = [one.removeprefix("sglang/") for one in text.split(",")]
    if text == KNOWN:
        names = [name for name, repair in repairs.items() if repair.is_for(release)]
        if not names:
            raise RepairError(f"no repair was written for SGLang {release}")
    for name in names:
        if name not in repairs:
            raise RepairError(f"the finding sglang/{name} has no repair; there are {', '.join(repairs)}")
        if not repairs[name].is_for(release):
            raise RepairError(f"the repair of sglang/{name} is for {repairs[name].releases}, not for {release}")
    return [repairs[name].path for name in names]


def installed_release() -> str:
    """Return the version of the SGLang beside Coldproof. Raises RepairError without one."""
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError as problem:
        raise RepairError("SGLang is not installed here; run this with the Python of its environment") from problem


def main(words: Sequence[str]) -> None:
    """Run SGLang's server in this process, with repairs in it and in the processes that it starts."""
    if len(words) < 2 or words[1] != "--":
        sys.exit(f"usage: python -m {__spec__.name} NAME,... -- ARGUMENTS_OF_THE_SERVER")
    try:
        files = files_of(words[0], installed_release())
    except RepairError as problem:
        sys.stderr.write(f"coldproof: {problem}\n")
        sys.exit(2)
    sys.argv = [SERVER, *words[2:]]
    with tempfile.TemporaryDirectory(prefix="coldproof-") as folder, planted(files, Path(folder)):
        runpy.run_module(SERVER, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
