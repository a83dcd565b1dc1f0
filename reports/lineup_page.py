"""Several engines side by side as one self-contained page. Everything shown passes through the report's own
environment, which escapes it: names, reasons and sentences may quote an engine."""

from __future__ import annotations

from markupsafe import Markup

from reports.comparability import traits
from reports.likeness import differences, notes, standing_together
from reports.lineup import Lineup, Row
from reports.render import own, page, verdict_class

_STYLES = ("style.css", "matrix.css", "lineup.css")


def render_lineup(lineup: Lineup) -> str:
    """The page as one HTML document. Reads its own templates, and no clock."""
    return page(
        "lineup.html.j2",
        Markup("").join(own(sheet) for sheet in _STYLES),
        own("script.js"),
        lineup=lineup,
        matrix=lineup,
        found=lineup.verdicts,
        filtered="rows",
        traits=traits,
        kinds=kinds,
        together=standing_together(lineup.runs),
        notes=notes(lineup.runs),
        differences=differences(lineup.runs),
    )


def kinds(row: Row) -> str:
    """A row's verdicts as the filter knows them: it is shown while one of them is."""
    return " ".join(map(verdict_class, row.verdicts))
