"""Runs the public traces of a fuzzer against a vLLM server and judges them by Coldproof's rules.

    python benchmarks/fuzzer_reports/rerun.py --runs 10
    python benchmarks/fuzzer_reports/rerun.py --runs 10 --model smollm2 --engine-args="--dtype bfloat16"

Prints one line for each trace: how many answers differ from the cold ones token for token, which is what the fuzzer
compares, and how many of them are wrong by the rule that the calibration found.
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
import tempfile
from collections import Counter
from pathlib import Path

from traces import TRACES, Trace

from coldproof.adapters.registry import CELLS
from coldproof.harness.event_log import EventLog
from coldproof.harness.execution.engines.cell_engines import CellEngines
from coldproof.harness.execution.engines.pool import EnginePool
from coldproof.harness.judgement.checkers.tokens import agrees, closest
from coldproof.harness.judgement.judge import Judgement
from coldproof.harness.judgement.oracle import comparable_outcomes
from coldproof.harness.options import Options
from coldproof.harness.power.noise.without_faults import judge_workload
from coldproof.harness.selection.validation import check_options

COLUMNS = (
    "trace",
    "runs",
    "answers",
    "hits",
    "aborted",
    "differ",
    "runs that differ",
    "wrong",
    "wrong without a cache",
)


def main(words: list[str]) -> int:
    """Run all traces and print the table. Return 1 if an answer is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=10, help="of each trace (default: 10)")
    parser.add_argument("--model", help="a trained model by name, or a folder (default: the generated model)")
    parser.add_argument("--engine-args", default="", help="more flags for the engine")
    given = parser.parse_args(words)
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for cell in dict.fromkeys(trace.cell for trace in TRACES):
            options = Options(
                engine="vllm",
                report_dir=Path(folder),
                model=given.model,
                engine_args=tuple(shlex.split(given.engine_args)),
                budget="20m",  # for which a slow engine is calibrated
                findings="off",
            )
            check_options(options)
            with contextlib.closing(EnginePool(options, EventLog(Path(folder) / "events.ndjson"))) as pool:
                pool.prepare()
                engines = CellEngines.open(pool, CELLS[cell])
                say(f"cell {cell}: {engines.rule}")
                say(" | ".join(COLUMNS))
                wrong += sum(run(engines, trace, given.runs) for trace in TRACES if trace.cell == cell)
    return 1 if wrong else 0


def run(engines: CellEngines, trace: Trace, runs: int) -> int:
    """Run a trace several times, with and without a cache, print its line, and return the number of wrong answers."""
    total: Counter[str] = Counter()
    for _ in range(runs):
        seen = counted(judge_workload(engines, engines.rule, trace.workload))
        total += seen + Counter({"runs that differ": int(seen["differ"] > 0)})
        if seen["wrong"] and engines.oracle_engine is not None:
            off = judge_workload(engines, engines.rule, trace.workload, caching=False)
            total["wrong without a cache"] += counted(off)["wrong"]
    say(" | ".join((trace.name, str(runs), *(str(total[name]) for name in COLUMNS[2:]))))
    return total["wrong"]


def counted(judgement: Judgement) -> Counter[str]:
    """Return how many answers of a run could be compared, hit, were cut off, differ, and are wrong."""
    outcomes = comparable_outcomes(judgement.history)
    for finding in judgement.findings:
        say(f"    {finding.sentence}")
    return Counter(
        answers=len(outcomes),
        hits=sum(o.hit_at_least > 0 for o in outcomes),
        aborted=sum(o.aborted is not None for o in outcomes),
        differ=sum(not agrees(o, closest(o, judgement.answers)) for o in outcomes),
        wrong=len(judgement.findings),
    )


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
