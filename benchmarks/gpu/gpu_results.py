"""Prints the results of a kit as the JSON from which gpu_tables.py makes its tables.

`python benchmarks/gpu/gpu_results.py RESULTS...` takes the folders that `gpu_kit.pyz run --out` wrote. A person then
fills in `note` (what broke) and, for each violation, `judgement` (what it was).
"""

from __future__ import annotations

import json
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

KEPT_OF_A_BAND = ("positions", "all_nats", "score_nats", "margin_nats", "flips")
KEPT_OF_A_STEP = ("state", "began", "seconds", "deadline", "exit_code")


def results_in(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name of each step with its results.json, from the archives of a folder of results."""
    for archive in sorted(folder.glob("*.tar.xz")):
        with tarfile.open(archive) as tar:
            for member in tar:
                if member.name.endswith("/report/results.json") and (read := tar.extractfile(member)):
                    yield Path(member.name).parts[-3], json.load(read)


def rule_of(calibration: dict[str, Any] | None) -> str | None:
    """Return the comparison rule in a word or two; None without a calibration."""
    return calibration["rule"].partition(":")[0] if calibration else None


def violation_of(case: dict[str, Any]) -> dict[str, Any]:
    """Return what is kept of a case: what was violated, and how often it failed on fresh engines and without the cache:
    pairs of failures and tries.
    """
    tried = case["reproduction"]
    seen = {kind: tried and [tried[f"{kind}_failed"], tried[f"{kind}_tries"]] for kind in ("fresh", "caching_off")}
    kept = {name: case[name] for name in ("requirement", "signature")}
    return {**kept, "case": case["id"], **seen, "judgement": ""}


def run_of(step: str, found: dict[str, Any], ended: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a run. `ended`: how its step ended."""
    calibration, fault, totals = found["calibration"], found["fault"], found["totals"]
    band = calibration and calibration["band"]
    counts = ("examples", "requests", "requirements")
    engine = found["engine"] or {"name": "not reached", "version": ""}
    cases = [case for case in found["cases"] if not case["known_issue"]]
    return {
        "step": step,
        "engine": engine["name"],
        "version": engine["version"],
        "started": found["started"],
        "seconds": found["duration_s"],
        "state": ended["state"],
        "exit_code": found["exit_code"],
        "fault": fault and fault["name"],
        "acted": fault and fault["acted"],
        "examples": totals["examples"],
        "requests": totals["requests"],
        "verdicts": {name: count for name, count in totals.items() if name not in counts and count},
        "rule": rule_of(calibration),
        "band": band and {name: band[name] for name in KEPT_OF_A_BAND},
        "calibration_measured": bool(band),
        "timing": found["timing"],
        "violations": [violation_of(case) for case in cases],
        "known_issue_cases": len(found["cases"]) - len(cases),
        "note": "",
    }


def main(folders: list[Path]) -> None:
    """Print the results of all folders as one document."""
    kits = [(folder, json.loads((folder / "kit.json").read_text())) for folder in folders]
    steps: list[dict[str, Any]] = []
    runs: list[dict[str, Any]] = []
    for folder, kit in kits:
        ended = {step["name"]: step for step in kit["steps"]}
        steps += [{"step": name, **{key: one[key] for key in KEPT_OF_A_STEP}} for name, one in ended.items()]
        runs += [run_of(name, found, ended[name]) for name, found in results_in(folder)]
    machine = {name: kits[0][1][name] for name in ("cards", "cores", "python", "libc")}
    versions = {name: version for _, kit in kits for name, version in kit["versions"].items()}
    document = {"machine": machine, "versions": versions, "runs": runs, "steps": steps}
    print(json.dumps(document, indent=1))  # noqa: T201


if __name__ == "__main__":
    main([Path(word) for word in sys.argv[1:]])
