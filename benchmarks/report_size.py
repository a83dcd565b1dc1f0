"""How long the report's files take to be made, and how large they are, for runs of up to a thousand cases.

The cases are the tests' samples: a reload, four requests, 64 tokens of each answer, 300 lines of log.
Run: python -m benchmarks.report_size
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from support.report_samples import many

from coldproof.harness.schema.results import Results, encode
from coldproof.reports.exports.badge import badge_svg
from coldproof.reports.exports.ctrf import ctrf_json
from coldproof.reports.exports.junit import junit_xml
from coldproof.reports.exports.markdown_summary import summary_markdown
from coldproof.reports.run_report.run_report import render_html

CASES, ROUNDS = (0, 50, 1000), 3
FILES: dict[str, Callable[[Results], str | bytes]] = {
    "index.html": render_html,
    "results.json": encode,
    "junit.xml": junit_xml,
    "ctrf.json": ctrf_json,
    "summary.md": summary_markdown,
    "badge.svg": badge_svg,
}


def quickest(make: Callable[[Results], str | bytes], results: Results) -> tuple[float, int]:
    """Seconds of the quickest of a few rounds, and bytes."""
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        made = make(results)
        times.append(time.perf_counter() - began)
    return min(times), len(made if isinstance(made, bytes) else made.encode())


def main() -> None:
    """Make every file for each number of cases, and print."""
    for count in CASES:
        results = many(count)
        for name, make in FILES.items():
            seconds, size = quickest(make, results)
            sys.stdout.write(f"{count:5} cases: {name:12} {seconds:6.2f} s {size / 1e6:7.2f} MB\n")


if __name__ == "__main__":
    main()
