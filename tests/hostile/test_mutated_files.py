"""Whatever a file from elsewhere contains, commands that read it end with an exit code and at most one line.

COLDPROOF_MUTATIONS is the number of mutated files; COLDPROOF_MUTATION is one to repeat.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from support import bundles
from support.bundles import EVENTS
from support.mutations import fresh, mutate

from coldproof.harness.case.known_issues import read_known_issues
from coldproof.harness.case.load import load_case
from coldproof.harness.cli.main import main
from coldproof.harness.execution.calibration.calibrate import earlier_calibration
from coldproof.harness.fleet.matrix import read_matrix, units_of
from coldproof.harness.options import UsageError
from coldproof.harness.release.bundle import verify
from coldproof.harness.release.run.manifest import seal
from coldproof.harness.release.run.sources import sources_digest
from coldproof.harness.schema.noise import CleanLevel, FaultLevel
from coldproof.harness.schema.results import encode

MUTATIONS = int(os.environ.get("COLDPROOF_MUTATIONS", "60"))
ONLY = os.environ.get("COLDPROOF_MUTATION")
NUMBERS = range(MUTATIONS) if ONLY is None else [int(ONLY)]
CODES = (0, 1, 3, 4)
HANG_SECONDS = 120  # after which the process ends with its stacks
CASE = "cases/LORA-9-7c21a0f3.json"
MATRIX = """[[machine]]
name = "cpu"
num_cpus = 1

[[run]]
engine = "llamacpp"
machines = ["cpu"]
seeds = [1, 2]
budget = "10s"
requirements = ["LORA-3"]
known_issues = "known_issues.toml"
options = ["--guided"]
"""
Command = Callable[[Path], object]


def command(*words: str) -> Command:
    """Return a function that runs a subcommand. Each `@` stands for the folder."""
    return lambda folder: main([word.replace("@", str(folder)) for word in words])


def sealed(run: Command) -> Command:
    """Return a command that first seals the folder again, as a forger who knows of the manifest would."""

    def both(folder: Path) -> object:
        with contextlib.suppress(OSError, ValueError):  # what cannot be sealed stays as it is
            seal(folder)
        return run(folder)

    return both


def reading(read: Callable[[Path], object]) -> Command:
    """Return a command that reads a file as a run does, and ends with 4 on a usage error."""

    def run(folder: Path) -> object:
        try:
            read(folder)
        except UsageError:
            return 4
        return 0

    return run


def from_events(folder: Path) -> object:
    """Write the report of a run that was killed."""
    (folder / "results.json").unlink()
    return main(["render", str(folder)])


VERIFY = command("verify", "@")
RESULTS = (
    command("render", "@", "-o", "@/page.html"),
    command("render", "@/results.json"),
    command("compare", "@", "@", "--html", "@/compared.html"),
    command("side-by-side", "@/results.json", "-o", "@/../side.html"),
    command("findings", "--collect", "@", "--out", "@/proposed"),
    sealed(VERIFY),
    reading(lambda folder: earlier_calibration(folder / "results.json", cell="default", version="0.32.0")),
)
READERS: dict[str, tuple[Command, ...]] = {
    "results.json": RESULTS,
    EVENTS: (from_events, command("rejudge", "@"), sealed(VERIFY), command("merge", "@", "--out", "@/../merged")),
    CASE: (
        reading(lambda folder: load_case(folder / CASE)),
        reading(lambda folder: load_case(folder / CASE, follow=True)),
        command("findings", "--collect", "@", "--out", "@/proposed"),
        sealed(VERIFY),
    ),
    "manifest.json": (VERIFY, command("register", "@", "--out", "@/../site")),
    "verdicts.intoto.json": (VERIFY,),
    "known_issues.toml": (
        reading(lambda folder: read_known_issues(folder / "known_issues.toml")),
        reading(lambda folder: read_matrix(folder / "matrix.toml")),
        sealed(VERIFY),
    ),
    "clean/quiet.level.json": (command("noise", "draw", "--out", "@"),),
    "faults/quiet.level.json": (command("noise", "draw", "--out", "@"),),
    "matrix.toml": (reading(lambda folder: units_of(read_matrix(folder / "matrix.toml"), folder)),),
}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a small bundle with all kinds of files."""
    folder = bundles.write(tmp_path_factory.mktemp("original") / "run", shard="1/1", examples=1)
    (folder / "matrix.toml").write_text(MATRIX)
    levels = {
        "clean": CleanLevel(
            worker="model", noise="", cell="default", requests=9, hits=3, parted=0, alarms=0, excess=[0.5]
        ),
        "faults": FaultLevel(worker="model", noise="", of=1, faults=[], budget=8.0),
    }
    for kind, level in levels.items():
        (folder / kind).mkdir()
        (folder / kind / "quiet.level.json").write_bytes(encode(level))
    return folder


def problem(run: Command, folder: Path) -> str:
    """Return what a command did that no input may make it do; empty if nothing."""
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            code = run(folder)
    except SystemExit as ended:
        code = ended.code
    except Exception as failure:  # noqa: BLE001 - this is what is looked for
        at = failure.__traceback__
        while at is not None and at.tb_next is not None:
            at = at.tb_next
        where = f"{at.tb_frame.f_code.co_filename}:{at.tb_lineno}" if at is not None else ""
        return f"{type(failure).__name__} at {where}: {str(failure)[:200]}"
    said = errors.getvalue()
    if code not in CODES:
        return f"exit code {code}"
    return f"{said.count(chr(10))} lines on stderr: {said[:300]}" if said.count("\n") > 1 else ""


def test_no_mutated_file_ends_in_a_traceback(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """No mutated file causes a traceback or a hang. Each file goes through one of the commands that read it."""
    bundles.small_list(tmp_path, monkeypatch)
    digest = sources_digest()
    monkeypatch.setattr(verify, "sources_digest", lambda: digest)
    found: dict[str, int] = {}
    for number in NUMBERS:
        draw = Random(number)
        name = draw.choice(list(READERS))
        folder = fresh(tmp_path / "run", original)
        for left in ("merged", "site"):
            shutil.rmtree(tmp_path / left, ignore_errors=True)
        mutate(folder / name, draw)
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        said = problem(draw.choice(READERS[name]), folder)
        faulthandler.cancel_dump_traceback_later()
        if said:
            found.setdefault(f"{name}: {said}", number)
        capfd.readouterr()
    assert found == {}
