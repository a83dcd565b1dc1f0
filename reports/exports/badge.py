"""badge.svg: the result of a run in two words, for a README.

The image is self-contained: it loads no font, style or address. Its text fits its box with any font.
"""

from __future__ import annotations

from pathlib import Path

from coldproof.harness.schema.results import Results
from coldproof.reports.page.environment import PageTemplates
from coldproof.reports.views import overview

_LABEL = "prefix cache"
_COLOUR = {  # white text on each has a contrast of at least 4.5:1
    overview.RunStatus.CONFORMANT: "#00694d",
    overview.RunStatus.KNOWN_ISSUES: "#00598c",
    overview.RunStatus.NOT_CONFORMANT: "#a84300",
    overview.RunStatus.NOT_VERIFIED: "#5b636b",
}
_CHARACTER, _MARGIN = 6.2, 7.0  # of 11 px sans-serif text


TEMPLATES = PageTemplates(folders=(Path(__file__).parent,))


def badge_svg(results: Results) -> str:
    """Return the badge as SVG. Its title, for tooltips and screen readers, has the engine, the counts and the date."""
    standing = overview.run_status(results)
    left, right = _width(_LABEL), _width(standing.value)
    return TEMPLATES.environment.get_template("badge.svg.j2").render(
        label=_LABEL,
        word=standing.value,
        colour=_COLOUR[standing],
        left=left,
        right=right,
        margin=_MARGIN,
        title=badge_title(results),
    )


def badge_title(results: Results) -> str:
    """Return the badge's text in one sentence."""
    counts = [f"{count} {verdict.value.lower()}" for verdict, count in overview.counts(results) if count]
    what = ", ".join([*overview.banners(results), overview.run_status(results).value])
    counted = f" ({', '.join(counts)})" if counts and not overview.failed_selftests(results) else ""
    return f"Prefix cache of {overview.engine_name(results)}: {what}{counted}. Coldproof, {results.started[:10]}"


def _width(text: str) -> float:
    return round(len(text) * _CHARACTER + 2 * _MARGIN, 1)
