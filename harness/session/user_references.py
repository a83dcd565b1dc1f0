"""Refuses a model that is not there, and known issues about what does not exist, before anything starts."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from pathlib import Path

from coldproof.adapters.common.model_folder import CONFIG, GGUF
from coldproof.adapters.registry import ATTACHED, CELLS
from coldproof.harness.case.known_issues import Issue, KnownIssue
from coldproof.harness.execution.models.trained import TRAINED, is_trained
from coldproof.harness.options import UsageError
from coldproof.harness.release.requirements.statements import statements


def check_model(model: str | None, *, attached: bool = False) -> None:
    """Raise UsageError for a path without a model. What may be a name, on a model hub for example, is for the engine.

    Of an attached server (`attached`), Coldproof itself reads the model.
    """
    if model is None or is_trained(model):
        return
    path = Path(model)
    may_be_name = model.count("/") < 2 and not model.startswith(("/", ".", "~")) and not path.exists()
    there = path.is_file() if model.endswith(GGUF) else (path / CONFIG).is_file()
    if there or (may_be_name and not attached):
        return
    folder = "the folder of the model that the server serves" if attached else "a folder with that file"
    lacks = "no such file" if model.endswith(GGUF) else f"no {CONFIG} there"
    raise UsageError(f"--model {model}: {lacks}; give {folder}, or one of the names {', '.join(TRAINED)}")


def check_known_issues(issues: Iterable[Issue]) -> None:
    """Raise UsageError for an entry of a violation that is repeated, or about an unknown requirement or cell."""
    seen: dict[KnownIssue, int] = {}
    for number, issue in enumerate((one for one in issues if isinstance(one, KnownIssue)), start=1):
        if seen.setdefault(issue, number) != number:
            raise UsageError(f"--known-issues: entry {number} repeats entry {seen[issue]}")
        if issue.requirement not in statements():
            raise UsageError(
                f"--known-issues: entry {number} is for requirement {issue.requirement!r}, which is unknown"
            )
        if not any(fnmatch.fnmatchcase(name, issue.cell) for name in (*CELLS, ATTACHED.name)):
            raise UsageError(
                f"--known-issues: entry {number}, for {issue.requirement}, is for cell {issue.cell!r}, which is "
                "unknown; --cells list prints all cells"
            )
