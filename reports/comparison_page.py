"""A comparison as one self-contained page. Everything shown passes through the report's own environment, which escapes
it: sentences, signatures and names may quote an engine."""

from __future__ import annotations

from reports.comparison import MEANING, Comparison, Kind, counts, headline, of_kind
from reports.render import own, page, verdict_class
from reports.schema import Verdict

# Each kind in the colour of the verdict that it is most like: the page has one meaning for a colour.
_LIKE = {
    Kind.NEWLY_VIOLATED: Verdict.VIOLATED,
    Kind.OTHERWISE: Verdict.VIOLATED,
    Kind.NO_LONGER_EXERCISED: Verdict.NOT_EXERCISED,
    Kind.WAIVER_GONE: Verdict.INCONCLUSIVE,
    Kind.STILL_THERE: Verdict.VIOLATED,
    Kind.NEWLY_WAIVED: Verdict.KNOWN_ISSUE,
    Kind.STILL_WAIVED: Verdict.KNOWN_ISSUE,
    Kind.FIXED: Verdict.CONFORMS,
    Kind.NEWLY_EXERCISED: Verdict.CONFORMS,
    Kind.UNCHANGED: Verdict.UNSUPPORTED,
}


def render_comparison(comparison: Comparison) -> str:
    """The comparison as one HTML document. Reads its own templates, and no clock."""
    return page(
        "changes.html.j2",
        own("style.css") + own("changes.css"),
        comparison=comparison,
        headline=headline(comparison),
        counts=counts(comparison),
        of_kind=of_kind,
        kinds=Kind,
        meaning=MEANING,
        colour={kind: verdict_class(verdict) for kind, verdict in _LIKE.items()},
    )
