"""What the commands set side by side: engines, two runs, releases, and registered qualifications."""

from __future__ import annotations

from dataclasses import dataclass

_END = ("requirements", "facts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What the runs of a page are. `column`: one of them, in a word. `sections`: of the page, in their order.

    `series`: each run follows on the one before, and what changed is shown. `by_time`: in the order of their start.
    """

    title: str
    about: str
    column: str
    sections: tuple[str, ...] = ("columns", "likeness", "matrix", "causes", *_END)
    series: bool = False
    by_time: bool = False


ENGINES = Kind(title="engines side by side", about="prefix-cache conformance, engine by engine", column="engine")
TWO_RUNS = Kind(
    title="two runs compared",
    about="two runs compared",
    column="run",
    sections=("changes", "columns", "likeness", "matrix", "causes", "slower", *_END),
    series=True,
    by_time=True,
)
RELEASES = Kind(
    title="releases side by side",
    about="prefix-cache conformance of several releases of one engine",
    column="release",
    sections=("matrix", "changes", "causes", "columns", "likeness", "slower", *_END),
    series=True,
)
REGISTER = Kind(
    title="register",
    about="register of the bundles that coldproof verify accepts; each has a page that says how to verify it again",
    column="qualification",
)
