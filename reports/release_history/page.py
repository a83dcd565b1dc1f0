"""Renders history.json as one self-contained page: requirement by release, and each change of a verdict."""

from __future__ import annotations

from pathlib import Path

from coldproof.reports.format.text import many
from coldproof.reports.page.environment import PageTemplates
from coldproof.reports.release_history.causes import causes
from coldproof.reports.release_history.changes import Change, changes
from coldproof.reports.schema.releases import ReleaseHistory, ReleaseRow
from coldproof.reports.schema.verdict import Verdict

TEMPLATES = PageTemplates(folders=(Path(__file__).parent / "templates",))


def headline(history: ReleaseHistory) -> str:
    """Return the history in one sentence."""
    found = changes(history)
    mended = sum(change.mended for change in found)
    ran = sum(bool(row.verdicts) for row in history.releases)
    return (
        f"{history.engine}: {many(ran, 'release')} of {len(history.releases)} tested; "
        f"{many(mended, 'violation')} mended by a later release, {len(found) - mended} new in one"
    )


def render_history(history: ReleaseHistory) -> str:
    """Return the page as one HTML document. Reads only templates, and no clock."""
    found = changes(history)
    return TEMPLATES.page(
        "release_history.html.j2",
        styles=("style.css", "release_history.css"),
        history=history,
        headline=headline(history),
        untested=untested(history),
        changes=found,
        causes=causes(history),
        changed=lambda row, requirement: changed(found, row, requirement),
    )


def untested(history: ReleaseHistory) -> list[str]:
    """Return the requirements that no release supports, as these runs were started."""
    every = [row.verdicts for row in history.releases]
    return [
        name
        for name in history.requirements
        if all(name not in verdicts or verdicts[name].verdict is Verdict.UNSUPPORTED for verdicts in every)
    ]


def changed(found: list[Change], row: ReleaseRow, requirement: str) -> bool:
    """Return whether a requirement's verdict on this release differs from that on the last one before."""
    return any(change.after is row and change.requirement == requirement for change in found)
