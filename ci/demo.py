"""Write docs/demo from its stored run: `python ci/demo.py`. `python ci/demo.py REPORT` stores that run first.

The stored run is docs/demo/results.json; README.md there is what a CI job shows of it (`summary.md`). The page is made
by the reader (`coldproof render`), so that the repository does not grow with each change of the page.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from coldproof.harness.case.finding_folder import without_paths
from coldproof.harness.schema.results import Results, read_results, write_results
from coldproof.reports.exports.markdown_summary import summary_markdown
from coldproof.reports.exports.write import write_text

FOLDER = Path(__file__).parent.parent / "docs" / "demo"
RESULTS, TEXT = FOLDER / "results.json", FOLDER / "README.md"
HEAD = """\
# A report, recorded

This is the summary of a run against vLLM with a bug that was injected on purpose, `{fault}`:
{does} A CI job can show the summary of each run (`summary.md`). This command makes the page of
the same run, with the timeline of each case:

```console
$ coldproof render docs/demo/results.json -o demo.html
```

![The first screen of the page](../images/report.png)

"""


def main(report: Path | None = None) -> None:
    """Store a run if one is given, and write README.md."""
    if report is not None:
        write_results(stored(read_results(report / "results.json")), RESULTS)
    write_text(TEXT, text(read_results(RESULTS)))


def stored(results: Results) -> Results:
    """Return a run without the folders and the kernel of the machine that made it."""
    kept = msgspec.convert(without_paths(msgspec.to_builtins(results)), Results)
    system = kept.environment["os"].partition(" ")[0]
    return msgspec.structs.replace(kept, environment={**kept.environment, "os": system})


def text(results: Results) -> str:
    """Return README.md: what the run was, and its summary."""
    fault = results.fault
    assert fault is not None, "the demo is a run with an injected fault"
    return HEAD.format(fault=fault.name, does=fault.summary) + summary_markdown(results)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
