"""Runs the suites once, in a process of their own, and reads from the run's events what they noticed."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import msgspec

from harness.power.forked import DidNotEnd, pytest_main, within
from reports.assemble import EXIT_FAILED, EXIT_OK, assemble, read_events
from reports.power_schema import Detection, SuiteRun
from reports.schema import Case, Verdict

ROOT = Path(__file__).resolve().parent.parent.parent
FACTOR, SLACK = 6, 300  # of a run's budget: starts of engines, minimising and confirming come on top


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """What to run: suites, where, how long. No fault: the engine as it is."""

    worker: str
    seed: int
    seconds: float
    cells: tuple[str, ...]
    profile: str
    requirements: tuple[str, ...] = ()  # none: all
    fault: str | None = None
    calibration: Path | None = None  # results.json of a run on the engine as it is
    noise: str | None = None  # that its engines' scores waver by

    def words(self, report: Path) -> list[str]:
        """The command line behind `python -m pytest`."""
        words = [str(ROOT / "suites"), "--engine", "vllm-inproc", "--worker", self.worker]
        words += ["--profile", self.profile, "--cells", ",".join(self.cells), "--budget", f"{self.seconds:g}s"]
        words += ["--known-issues", str(ROOT / "known_issues" / "vllm.toml"), "--hypothesis-seed", str(self.seed)]
        words += ["--requirements", ",".join(self.requirements)] if self.requirements else []
        words += ["--fault", self.fault] if self.fault is not None else []
        words += ["--noise", self.noise] if self.noise is not None else []
        words += ["--calibration", str(self.calibration)] if self.calibration is not None else []
        return [
            *words,
            "--report-dir",
            str(report),
            "-q",
            "-W",
            "ignore",
            "-p",
            "no:logging",
            "--diagnose",
            "none",
            "--allow-not-exercised",
        ]


def run(ask: Ask, folder: Path) -> SuiteRun:
    """Run, and wait for the end; an engine that hangs for good is ended with its run.

    The run's folder is its working directory, so that no example of another run comes back to it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    words, problem = ask.words(folder / "report"), ""
    try:
        code = within(FACTOR * ask.seconds + SLACK, pytest_main, tuple(words), folder)
        if code not in (EXIT_OK, EXIT_FAILED):
            problem = f"exit code {code}"
    except DidNotEnd as late:
        problem = str(late)
    return read(folder / "report" / "events.ndjson", shlex.join(["python", "-m", "pytest", *words]), problem)


def read(path: Path, command: str, problem: str) -> SuiteRun:
    """What a run's events say, also of one that was ended."""
    if not path.exists():
        return SuiteRun(
            detections=[],
            verdicts={},
            examples=0,
            requests=0,
            seconds=0.0,
            acted=False,
            command=command,
            problem=problem or "it wrote no events",
        )
    events = read_events(path)
    results = assemble(events)
    first = next((e["at"] for e in events if e["event"] == "trial"), events[-1]["at"])
    cases = {case.id: case for case in results.cases}
    found: dict[str, Detection] = {}
    for event in events:
        if event["event"] == "verdict" and event["verdict"] == Verdict.VIOLATED and event["requirement"] not in found:
            requests, at = until_found(events, event["requirement"], event["cell"])
            found[event["requirement"]] = detection(event, cases[event["case"]], requests, at - first)
    return SuiteRun(
        detections=sorted(found.values(), key=lambda d: d.requests),
        verdicts={r.id: r.verdict.value for r in results.requirements},
        examples=results.totals["examples"],
        requests=results.totals["requests"],
        seconds=round(events[-1]["at"] - first, 1),
        acted=bool(results.fault and results.fault.acted),
        command=command,
        problem=problem or results.problem,
    )


def detection(event: dict[str, Any], case: Case, requests: int, seconds: float) -> Detection:
    """One violated requirement."""
    seen = case.reproduction
    return Detection(
        requirement=event["requirement"],
        cell=event["cell"],
        requests=requests,
        seconds=round(seconds, 1),
        failure_class=case.failure_class.value,
        sentence=case.sentence,
        steps=len(case.steps),
        reproduced=f"{seen.fresh_failed} of {seen.fresh_tries} on a fresh engine",
        provenance=case.provenance[0] if case.provenance else "",
    )


def until_found(events: list[dict[str, Any]], requirement: str, cell: str) -> tuple[int, float]:
    """The requests of all examples up to the first of a requirement that failed in a cell, and when that was."""
    requests = 0
    for event in events:
        if event["event"] == "example":
            requests += event["requests"]
            if event["failed"] and (event["requirement"], event["cell"]) == (requirement, cell):
                return requests, event["at"]
    return requests, events[-1]["at"]
