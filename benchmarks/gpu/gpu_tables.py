"""Prints the tables of docs/gpu.md from the results of runs on a GPU.

`python benchmarks/gpu/gpu_tables.py` reads the files of the sessions beside it, which gpu_results.py made: one row for
each run of the suites, and the measurement of false positives. A row's `note` says what broke. No engine is started.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "ci" / "plans"))
measures: Any = importlib.import_module("transformers_measures")

SESSIONS = [json.loads(Path(__file__).with_name(name).read_text()) for name in ("h200.json", "h200-second.json")]
MEASURED = SESSIONS[0]  # has the measurement of false positives
RUNS = [run for session in SESSIONS for run in session["runs"]]
Runs = list[dict[str, Any]]
SHORT = {"KNOWN ISSUE": "known", "NOT EXERCISED": "not exercised", "UNSUPPORTED": "unsupported"}
WORDS = {"VIOLATED": 0, "INCONCLUSIVE": 1, "CONFORMS": 2, "ERROR": 3, "KNOWN ISSUE": 4}  # the order of verdicts


def table(head: str, rows: Iterable[list[object]]) -> list[str]:
    """Return the lines of a table. `head`: its header, of which numbers stand right where a column ends with ':'."""
    columns = head.split(" | ")
    marks = ["--:" if column.endswith(":") else "---" for column in columns]
    lines = ["| " + " | ".join(column.rstrip(":") for column in columns) + " |", "|" + "|".join(marks) + "|"]
    return lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]


def verdicts(run: dict[str, Any]) -> str:
    """Return the counts of a run's verdicts, the gravest first, and the requirements that are violated."""
    found = sorted(run["verdicts"].items(), key=lambda pair: WORDS.get(pair[0], 9))
    words = [f"{count} {SHORT.get(name, name.lower())}" for name, count in found]
    violated = sorted({case["requirement"] for case in run["violations"]})
    return ", ".join(words) + (f" ({', '.join(violated)})" if violated else "")


def runs(of: Runs) -> list[str]:
    """Return the table of the runs without an injected fault."""

    def row(run: dict[str, Any]) -> list[object]:
        engine = f"{run['engine']} {run['version']}"
        sent = "" if run["requests"] is None else f"{run['examples']}, {run['requests']}"
        seconds = "" if run["seconds"] is None else round(run["seconds"])
        return [run["step"], engine, seconds, run["rule"] or "none", sent, verdicts(run), run["note"]]

    head = "step | engine | s: | rule | examples, requests: | verdicts | what it was, what broke"
    return table(head, (row(run) for run in of if not run["fault"]))


def tolerances(of: Runs) -> list[str]:
    """Return the table of the tolerances that calibrations measured."""
    rows: list[list[object]] = []
    for run in of:
        band = run["band"]
        if band is not None and run["calibration_measured"]:
            values = (band["all_nats"], band["score_nats"], band["margin_nats"])
            rows.append([run["step"], run["engine"], f"{band['positions']:,}", *values, f"{band['flips']:.2%}"])
    return table("step | engine | scores: | largest difference: | tolerance: | of margins: | flips, at most:", rows)


def false_positives() -> list[str]:
    """Return the table of answers that were compared with engines without a fault, and exact bounds of the rate."""
    compared = {f"Transformers, {kind}": found for kind, found in MEASURED["noise"]["kinds"].items()}
    compared["Transformers, all"] = MEASURED["noise"]["all"]
    honest = [run for run in RUNS if not run["fault"] and run["requests"] and run["rule"] != "no rule"]
    flagged = sum(case["judgement"] == "false positive" for run in honest for case in run["violations"])
    suites = {"answers": sum(run["requests"] for run in honest), "flagged": flagged}
    both = {name: suites[name] + MEASURED["noise"]["all"][name] for name in suites}
    compared |= {"runs of the suites, both engines": suites, "together": both}
    return table(
        "answers of | compared: | false positives: | rate, at most:", map(bounded, compared, compared.values())
    )


def bounded(name: str, found: dict[str, Any]) -> list[object]:
    """Return a row with the exact upper bound (Clopper and Pearson, one-sided, 95 %)."""
    rate = measures.bound(found["flagged"], found["answers"])["rate_at_most"]
    return [name, f"{found['answers']:,}", found["flagged"], f"{rate:.2%}" if rate > 1e-3 else f"{rate:.3%}"]


def faults(of: Runs) -> list[str]:
    """Return the table of the runs with an injected fault."""

    def outcome(run: dict[str, Any]) -> str:
        found = sorted({case["requirement"] for case in run["violations"]})
        if any(case["judgement"].startswith("ours") for case in run["violations"]):
            return "no fault: it calls a method that vLLM 0.26.0 does not have"
        if found:
            return f"detected: {', '.join(found)}"
        if not run["acted"]:
            return run["note"] or "no time: the engine was still starting"
        return "not detected; cut off" if run["examples"] > 1 else "no time: cut off at the first example"

    def numbers(run: dict[str, Any]) -> str:
        return "float32" if "float32" in run["step"] else "bfloat16"

    def row(run: dict[str, Any]) -> list[object]:
        return [run["fault"], run["engine"], numbers(run), f"{run['examples']}, {run['requests']}", outcome(run)]

    head = "fault | engine | numbers | examples, requests: | outcome"
    return table(head, (row(run) for run in of if run["fault"]))


def tables() -> Iterator[list[str]]:
    """Yield all tables."""
    for session in SESSIONS:
        yield from (runs(session["runs"]), tolerances(session["runs"]), faults(session["runs"]))
    yield false_positives()


if __name__ == "__main__":
    for lines in tables():
        print("\n".join(lines), end="\n\n")  # noqa: T201
