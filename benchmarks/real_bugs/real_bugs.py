"""Real bugs, blind: which of a fixed list of public bugs the suites detect.

    python benchmarks/real_bugs/real_bugs.py replays vllm=OUT/history.json
    python benchmarks/real_bugs/real_bugs.py record vllm=OUT/history.json llamacpp=OUT2/runs/0.2.14/results.json
    python benchmarks/real_bugs/real_bugs.py plant OUT [BUG...]
    python benchmarks/real_bugs/real_bugs.py faults
    python benchmarks/real_bugs/real_bugs.py record planted=OUT/power.json
    python benchmarks/real_bugs/real_bugs.py page

`record` keeps the verdicts of `coldproof history`, or of one run of the suites, on the releases of the list, and what
`coldproof bisect` found beside a history: a case may pass after the fix although its requirement is violated there, by
another cause. `replays` prints the commands for it. `plant` runs the profile `ci` with each bug that is planted again
or open, and keeps what was found; `faults` prints those that are planted, for `coldproof power --faults`, whose
power.json `record planted=` keeps. `page` writes docs/real-bugs.md from the list, all of these and the notes on misses.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from bug_list import FOLDER, read_bugs, read_notes
from bug_page import page
from bug_runs import planted_runs, read_planted, read_runs, record, record_planted, replays
from outcomes import of_finding, outcomes
from plant import planted, still_open

from coldproof.harness.schema.power import PowerResults

PAGE = FOLDER.parent.parent / "docs" / "real-bugs.md"
USAGE = 4
SECONDS, JOBS = 120, 2  # of drawing for each planted bug; runs side by side


def keep(word: str) -> None:
    """Record one file. `word`: ENGINE=FILE, or planted=FILE."""
    kind, _, file = word.partition("=")
    if kind == "planted":
        record_planted(planted_runs(msgspec.json.decode(Path(file).read_bytes(), type=PowerResults)))
    else:
        record(kind, Path(file))


def say(line: str) -> None:
    """Print a line at once: the next one may take minutes."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(words: Sequence[str]) -> int:
    """Run one of the commands and return the exit code."""
    if words[:1] == ["record"] and len(words) > 1:
        for word in words[1:]:
            keep(word)
    elif words[:1] == ["replays"] and len(words) > 1:
        sys.stdout.writelines(f"{line}\n" for line in replays(words[1:]))
    elif words[:1] == ["plant"] and len(words) > 1:
        bugs = [bug for bug in read_bugs() if bug.id in words[2:] or not words[2:]]
        for found in planted(bugs, Path(words[1]).resolve(), seconds=SECONDS, jobs=JOBS):
            record_planted([found])
            say(f"{found.fault}: {found.requirement or 'missed'} after {found.requests} requests")
        for bug, file in still_open(bugs, Path(words[1]).resolve(), seconds=SECONDS, jobs=JOBS):
            record(bug.engine, file)
            say(f"{bug.finding}: {of_finding(read_runs(), bug).outcome.value}")
    elif words == ["faults"]:
        sys.stdout.write(",".join(sorted({bug.planted for bug in read_bugs() if bug.planted})) + "\n")
    elif words == ["page"]:
        PAGE.write_text(current_page())
    else:
        sys.stderr.write(f"{__doc__}\n")
        return USAGE
    return 0


def current_page() -> str:
    """Return the page of everything that is recorded."""
    runs, notes = read_runs(), read_notes()
    return page(outcomes(runs, read_planted()), runs, notes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
