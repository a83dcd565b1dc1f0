"""Runs a kit on the target: puts it together, installs it into a folder of its own, runs the plan, packs the results.

Nothing is fetched, and nothing outside the work folder and OUT is changed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

import kit_parts
from kit_inventory import inventory
from kit_pack import unpack
from kit_plan import BUDGET_SHARE, Plan, Step, normal, read_plan, substituted
from kit_results import Packer, headline
from kit_steps import Lanes, Process, Result, State, StepProcess

DONE_MARK = "installed"  # the digest of the kit that is installed in the work folder
NOTED = ("coldproof", "torch", "transformers", "triton", "vllm", "numpy", "peft", "accelerate", "tokenizers")


class InstallError(RuntimeError):
    """The kit's wheels cannot be installed, with what pip said."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """The options of a run. `budget`: None for the plan's own. `stretch`: multiplies all times of the plan."""

    parts: tuple[Path, ...]
    out: Path
    work: Path
    device: str
    plan: Path | None
    only: tuple[str, ...]
    budget: float | None
    stretch: float = 1.0


def run(options: Run, say: Callable[[str], None]) -> int:
    """Run the plan and return 0 if every step is done, else 1. Raises PartsError, PlanError or InstallError."""
    began = time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    install(options, say)
    installed = time.monotonic() - began
    plan = read_plan(options.plan or options.work / "kit" / "plan.toml").stretched(options.stretch)
    steps = plan.chosen(options.device, options.only)
    budget = options.budget or plan.budget
    here = inventory()
    facts: dict[str, Any] = {
        "plan": plan.about,
        "device": options.device,
        "budget": budget,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "kit": kit_parts.whole_digest(options.parts),
        "install_seconds": round(installed, 1),
        **{name: here[name] for name in ("python", "machine", "libc", "kernel", "cores", "cards")},
        "versions": versions(options.work / "site", here["packages"]),
    }
    say(f"{len(steps)} steps in {budget:.0f} s on {cards_in_words(here)}; {facts['versions']}")
    lanes = Lanes(
        now=time.monotonic,
        sleep=time.sleep,
        start=lambda step, seconds: start(options, plan, step, seconds),
        ended=lambda step, _result: ended(step),
        say=say,
        began=began,
        end=began + budget,
    )
    packer = Packer(
        out=options.out,
        work=options.work / "steps",
        steps=steps,
        facts=facts,
        results=lambda: list(lanes.results.values()),
    )

    def ended(step: Step) -> None:
        facts["seconds"] = round(time.monotonic() - began, 1)
        packer.ended(step.group)
        if line := headline(options.work / "steps" / step.name):
            say(f"{step.name}: {line}")

    packer.write()
    with interruptible():
        lanes.run(steps)
    facts["seconds"] = round(time.monotonic() - began, 1)
    packer.write()
    for result in lanes.results.values():
        say(row(result))
    return 0 if all(one.state is State.DONE for one in lanes.results.values()) else 1


def row(one: Result) -> str:
    """Return a result as a line of the table at the end."""
    code = "-" if one.exit_code is None else str(one.exit_code)
    seconds = f"{one.seconds:7.1f} s of {one.deadline:5.0f}"
    return f"  {one.name:48} {one.state.value:8} {seconds}  exit {code:4} {one.reason}"


def cards_in_words(here: dict[str, Any]) -> str:
    """Return the cards of this machine as text."""
    return ", ".join(f"{card['name']} (driver {card['driver_version']})" for card in here["cards"]) or "no card"


def versions(site: Path, packages: dict[str, str]) -> dict[str, str]:
    """Return the versions of the packages that matter. What is in the kit's folder comes before what was there."""
    brought = {
        normal(name): version for name, _, version in (one.stem.partition("-") for one in site.glob("*.dist-info"))
    }
    found = {name: brought.get(name) or packages.get(name) for name in NOTED}
    return {name: version for name, version in found.items() if version}


def install(options: Run, say: Callable[[str], None]) -> None:
    """Put the kit together and install it in the work folder, unless the same kit is there. Raises InstallError."""
    digest, mark = kit_parts.whole_digest(options.parts), options.work / DONE_MARK
    if mark.is_file() and mark.read_text() == digest:
        say("this kit is installed already")
        return
    for name in ("kit", "site", "cache", "steps"):
        shutil.rmtree(options.work / name, ignore_errors=True)
    options.work.mkdir(parents=True, exist_ok=True)
    whole = options.work / "kit.tar.xz"
    kit_parts.join(options.parts, whole)
    say(f"{len(options.parts)} parts are intact")
    unpack(whole, options.work / "kit")
    whole.unlink()
    shutil.copytree(options.work / "kit" / "cache", options.work / "cache")
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
    words += ["--no-cache-dir", "--disable-pip-version-check", "--no-warn-script-location"]
    wheels = sorted(map(str, (options.work / "kit" / "wheels").glob("*.whl")))
    done = subprocess.run(
        [*words, "--target", str(options.work / "site"), *wheels], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise InstallError(f"pip cannot install the wheels: {(done.stderr.strip() or done.stdout.strip())[-2000:]}")
    mark.write_text(digest)
    say(f"{len(wheels)} wheels installed in {options.work / 'site'}")


def start(options: Run, plan: Plan, step: Step, seconds: float) -> Process:
    """Start a step in a folder of its own, which is emptied before."""
    work, folder = options.work, options.work / "steps" / step.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    values = {
        "python": sys.executable,
        "device": options.device,
        "out": str(folder),
        "report": str(folder / "report"),
        "files": str(work / "kit" / "files"),
        "site": str(work / "site"),
        "cache": str(work / "cache"),
        "work": str(work),
        "budget": str(int(seconds * BUDGET_SHARE)),
    }
    words, own = substituted(step, values)
    shared = {name: value.format(**values) for name, value in plan.env.items()}
    return StepProcess(words, folder=folder, environment={**environment(work, values), **shared, **own})


def environment(work: Path, values: dict[str, str]) -> dict[str, str]:
    """Return the environment of every step: the kit's packages first, no network, no shared caches."""
    temporary = work / "tmp"
    temporary.mkdir(exist_ok=True)
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((values["site"], values["files"])),
        "PATH": os.pathsep.join((f"{values['site']}/bin", os.environ.get("PATH", os.defpath))),
        "XDG_CACHE_HOME": values["cache"],
        "TMPDIR": str(temporary),
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(work / "kit" / "models"),
    }


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt at SIGTERM and SIGHUP too, once."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        for one in caught:
            signal.signal(one, signal.SIG_IGN)
        raise KeyboardInterrupt

    caught: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    before = {number: signal.signal(number, interrupt) for number in caught}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
