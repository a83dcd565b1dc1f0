"""Writes the files of one run atomically, so that a reader never sees an incomplete file.

In a folder of ours, each file is listed first. results.json is written first, because all other files can be generated
from it.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from coldproof.harness.schema.results import Results, write_results
from coldproof.reports.exports.badge import badge_svg
from coldproof.reports.exports.ctrf import ctrf_json
from coldproof.reports.exports.junit import junit_xml
from coldproof.reports.exports.markdown_summary import summary_markdown
from coldproof.reports.files.own_folder import claim, mark
from coldproof.reports.format.text import storable
from coldproof.reports.run_report.run_report import compile_templates, render_html

# As `module:function`, for a process whose forks write reports: each would compile the templates again.
TEMPLATES = f"{compile_templates.__module__}:{compile_templates.__qualname__}"


def write_all(results: Results, folder: Path) -> None:
    """Write results.json, index.html and the other files of a run into `folder`, each atomically.

    Lone surrogates are replaced first: an engine's JSON can contain them, but a UTF-8 file cannot. Raises OSError if a
    file cannot be written, and msgspec.ValidationError if the results do not fit the schema.
    """
    clean = msgspec.convert(storable(msgspec.to_builtins(results)), Results)
    folder.mkdir(parents=True, exist_ok=True)
    mark(folder)
    with _replacing(folder / "results.json") as temporary:
        write_results(clean, temporary)
    write_text(folder / "index.html", render_html(clean))
    write_text(folder / "junit.xml", junit_xml(clean))
    write_text(folder / "ctrf.json", ctrf_json(clean))
    write_text(folder / "summary.md", summary_markdown(clean))
    write_text(folder / "badge.svg", badge_svg(clean))


def write_text(path: Path, content: str) -> None:
    """Write a UTF-8 file with LF line ends atomically. Raises OSError."""
    write_bytes(path, content.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically. Raises OSError, also for a file in a folder of ours that we did not write."""
    with _replacing(path) as temporary:
        temporary.write_bytes(content)


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary file beside `path`. It replaces `path` if the body succeeds; else it is deleted."""
    claim(path)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        # mkstemp makes files private, but others, such as a CI's artifact step, must read a report.
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
