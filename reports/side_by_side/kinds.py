"""What the commands set side by side: engines, two runs, releases, and registered qualifications."""

from __future__ import annotations

from coldproof.reports.format.text import many
from coldproof.reports.side_by_side.changes import ChangeKind, headline
from coldproof.reports.side_by_side.matrix import Kind, SideBySide


def _of_engines(shown: SideBySide) -> str:
    """Return the number of runs and engines. It has no verdict, because no verdict holds for several engines."""
    return f"{many(len(shown.columns), 'run')} of {many(len(shown.engines), 'engine')}, requirement by requirement"


def _of_releases(shown: SideBySide) -> str:
    """Return how many releases were tested, and how many violations began or ended with one."""
    ran = [column for column in shown.columns if not column.source.problem]
    engine = next((column.results.engine.name for column in ran if column.results.engine), "no engine")
    fixed, new = (
        len({(one.column.label, one.requirement) for one in shown.changes if one.kind is kind})
        for kind in (ChangeKind.FIXED, ChangeKind.NEWLY_VIOLATED)
    )
    tested = f"{many(len(ran), 'release')} of {len(shown.columns)} tested"
    return f"{engine}: {tested}; {many(fixed, 'violation')} fixed by a later release, {new} new in one"


def _of_register(shown: SideBySide) -> str:
    """Return how many engine versions and targets there are."""
    return f"Engine versions and targets: {len(shown.columns)}"


def _of_bundles(shown: SideBySide) -> str:
    """Return the number of qualifications of one engine version and target."""
    return f"{many(len(shown.columns), 'qualification')} of {', '.join(shown.engines) or 'no engine'}"


_END = ("requirements", "facts")
_PLAIN = ("columns", "likeness", "matrix", "causes", *_END)

ENGINES = Kind(
    title="engines side by side",
    about="prefix-cache conformance, engine by engine",
    column="engine",
    sections=_PLAIN,
    headline=_of_engines,
)
TWO_RUNS = Kind(
    title="two runs compared",
    about="two runs compared",
    column="run",
    sections=("changes", "columns", "likeness", "matrix", "causes", "slower", *_END),
    headline=lambda shown: headline(shown.changes),
    series=True,
    by_time=True,
)
RELEASES = Kind(
    title="releases side by side",
    about="prefix-cache conformance of several releases of one engine",
    column="release",
    sections=("matrix", "changes", "causes", "columns", "likeness", "slower", *_END),
    headline=_of_releases,
    series=True,
)
REGISTER = Kind(
    title="register",
    about="register of the bundles that coldproof verify accepted; each has a page that says how to verify it again",
    column="qualification",
    sections=_PLAIN,
    headline=_of_register,
)
QUALIFICATIONS = Kind(
    title="qualifications",
    about="register of verified qualifications of one engine version and target",
    column="qualification",
    sections=_PLAIN,
    headline=_of_bundles,
)
