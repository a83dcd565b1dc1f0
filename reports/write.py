"""Writes the files of one run, so that a reader never meets half a file.

results.json goes first: it is the source of the others, and with it they can be made again.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from reports.badge import badge_svg
from reports.junit import junit_xml
from reports.render import render_html
from reports.schema import Results, write_results
from reports.summary import summary_markdown
from reports.text import storable


def write_all(results: Results, folder: Path) -> None:
    """Write results.json, index.html and the other views into `folder`, each whole or not at all.

    Lone surrogates, which an engine's JSON can carry but a file cannot, are replaced first: no answer of an engine may
    keep its report from being written. Raises OSError if a file cannot be written, msgspec.ValidationError if the
    results do not fit the schema.
    """
    clean = msgspec.convert(storable(msgspec.to_builtins(results)), Results)
    folder.mkdir(parents=True, exist_ok=True)
    with _replacing(folder / "results.json") as temporary:
        write_results(clean, temporary)
    write_text(folder / "index.html", render_html(clean))
    write_text(folder / "junit.xml", junit_xml(clean))
    write_text(folder / "summary.md", summary_markdown(clean))
    write_text(folder / "badge.svg", badge_svg(clean))


def write_text(path: Path, content: str) -> None:
    """Write UTF-8 with plain newlines, whole or not at all. Raises OSError."""
    with _replacing(path) as temporary:
        temporary.write_bytes(content.encode())


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place if the body succeeds and vanishes if it does not."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        # mkstemp makes files private; a report is read by others, such as a CI's artifact step.
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
