"""What else a reader must know of a run, beside its causes: waivers that need an edit, growth, requests left out."""

from __future__ import annotations

from collections.abc import Iterator

from coldproof.harness.schema.results import Results
from coldproof.reports.assemble.over_time import growth_text
from coldproof.reports.views import overview

_NEEDS_EDIT = ("expired", "stale")


def notes(results: Results) -> list[str]:
    """Return one sentence for each: expired waivers first, then stale ones, resources, and requests no longer sent."""
    return [*_waivers(results), *_growth(results), *_dropped(results)]


def _waivers(results: Results) -> Iterator[str]:
    for waiver in overview.waivers(results):
        if waiver.state in _NEEDS_EDIT:
            yield f"known issue {waiver.state_text}: {waiver.place}"


def _growth(results: Results) -> Iterator[str]:
    for one in results.growth:
        yield f"{one.process}, {one.what}: {growth_text(one)}"


def _dropped(results: Results) -> Iterator[str]:
    for one in results.dropped_kinds:
        since = f"case {one.case} of {one.requirement}" if one.case else "the calibration"
        narrows = f" This narrows {', '.join(one.narrows)}." if one.narrows else ""
        yield f"requests with {one.kind} were no longer sent, since {since} in {one.cell}: {one.why}{narrows}"
