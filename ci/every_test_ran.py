"""Check that every test ran in at least one environment: `python ci/every_test_ran.py JUNIT.xml ...`.

Each file is what pytest wrote with --junit-xml in one environment. A test with parameters ran if it did with one set of
them: the contract of adapters is tried on every engine, and an engine may lack what a test needs. Exit code: 0 every
test ran; 1 some did not, each with its reason on a line; 4 usage.
"""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence
from pathlib import Path

PARAMETERS_OR_GROUP = re.compile(r"[\[@]")  # pytest-xdist writes the group behind an @


def main(files: Sequence[str]) -> int:
    """Check the files; returns the exit code."""
    if not files:
        sys.stderr.write("usage: python ci/every_test_ran.py JUNIT.xml ...\n")
        return 4
    reasons = never_ran(Path(file) for file in files)
    for test, reason in reasons.items():
        sys.stderr.write(f"skipped in every environment: {test}: {reason}\n")
    return 1 if reasons else 0


def never_ran(files: Iterable[Path]) -> dict[str, str]:
    """Return the tests that were skipped wherever they were collected, each with a reason."""
    ran: set[str] = set()
    skipped: dict[str, str] = {}
    for file in files:
        for case in ET.parse(file).iter("testcase"):
            name = PARAMETERS_OR_GROUP.split(case.get("name", ""), maxsplit=1)[0]
            test = f"{case.get('classname')}::{name}"
            skip = case.find("skipped")
            if skip is None or skip.get("type") == "pytest.xfail":  # an expected failure ran
                ran.add(test)
            else:
                skipped[test] = skip.get("message", "")
    return {test: reason for test, reason in skipped.items() if test not in ran}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
