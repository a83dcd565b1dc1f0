"""badge.svg: the run in two words, to stand in somebody's README.

A picture of its own: no font, style or address is loaded, and its text is as wide as its box whatever font draws it.
"""

from __future__ import annotations

from reports import overview
from reports.render import environment
from reports.schema import Results

_LABEL = "prefix cache"
_COLOUR = {  # white text on each has a contrast of at least 4.5:1
    overview.Standing.CONFORMANT: "#00694d",
    overview.Standing.KNOWN_ISSUES: "#00598c",
    overview.Standing.NOT_CONFORMANT: "#a84300",
    overview.Standing.NOT_SHOWN: "#5b636b",
}
_CHARACTER, _MARGIN = 6.2, 7.0  # of 11 px sans-serif text


def badge_svg(results: Results) -> str:
    """The badge; its title, which a pointer or a screen reader tells, says which engine, how many and when."""
    standing = overview.standing(results)
    left, right = _width(_LABEL), _width(standing.value)
    return (
        environment()
        .get_template("badge.svg.j2")
        .render(
            label=_LABEL,
            word=standing.value,
            colour=_COLOUR[standing],
            left=left,
            right=right,
            margin=_MARGIN,
            title=badge_title(results),
        )
    )


def badge_title(results: Results) -> str:
    """The badge in one sentence."""
    counts = [f"{count} {verdict.value.lower()}" for verdict, count in overview.counts(results) if count]
    what = ", ".join([*overview.marks(results), overview.standing(results).value])
    told = f" ({', '.join(counts)})" if counts and not overview.missed(results) else ""
    return f"Prefix cache of {overview.engine_name(results)}: {what}{told}. Coldproof, {results.started[:10]}"


def _width(text: str) -> float:
    return round(len(text) * _CHARACTER + 2 * _MARGIN, 1)
