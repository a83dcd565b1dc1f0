"""Prompt embeddings are drawn in the bars of prompts, to scale, and described."""

from __future__ import annotations

import msgspec
import pytest
from support import report_samples as samples

from coldproof.harness.case.rows.prompts import marks
from coldproof.harness.schema.case import Case, SegmentRow
from coldproof.harness.workload.steps import Rows, Segment
from coldproof.harness.workload.tokens import segment_tokens
from coldproof.reports.run_report.case.geometry import Scale
from coldproof.reports.run_report.case.prompt_bars import PromptBars, prompt_bars, segment_text
from coldproof.reports.run_report.run_report import render_html

NONCE, LEGEND = SegmentRow(name="nonce", tokens=4), "embedding rows in place of tokens"
MIXED = SegmentRow(name="stem", tokens=40, changed=30, rows=[(2, 12), (30, 31)])
PLAIN = SegmentRow(name="stem", tokens=40)


def case(stem: SegmentRow) -> Case:
    """Return a case with one prompt of 44 tokens."""
    return samples.case(requests=[samples.request(0, prompt_tokens=44, segments=[NONCE, stem])])


def bars(stem: SegmentRow) -> PromptBars:
    found = prompt_bars(case(stem))
    assert found is not None
    return found


def test_rows_are_drawn_where_they_are() -> None:
    """Each range is within its segment, from its first position to the end of its last."""
    scale, (lane,) = Scale(44.0), bars(MIXED).lanes
    drawn = [(rows.x, round(rows.x + rows.width, 1)) for rows in lane.pieces[1].rows]
    assert drawn == [(scale.x(6), scale.x(16)), (scale.x(34), scale.x(35))]
    assert not lane.pieces[0].rows


@pytest.mark.parametrize(("stem", "there"), [(MIXED, True), (PLAIN, False)])
def test_the_legend_names_rows_only_if_there_are_any(stem: SegmentRow, there: bool) -> None:
    """The page draws them as well."""
    page = render_html(samples.results(case(stem)))
    assert (LEGEND in page) is there
    assert ('class="rows"' in page) is there


def test_words_say_where_rows_are() -> None:
    """The text names them along with the edits."""
    assert segment_text(MIXED) == "stem:40 (token 30 changed and embedding rows at 2-11 and 30-30)"
    assert segment_text(PLAIN) == "stem:40"


def test_a_segment_of_tokens_is_written_as_before() -> None:
    """Reports of other versions can read it."""
    assert b"rows" not in msgspec.json.encode(PLAIN)


@pytest.mark.parametrize(
    ("segment", "found"),
    [
        (Segment("s", 9), {"changed": None, "swapped": None}),
        (Segment("s", 9, rows=Rows(((2, 4), (6, 9)))), {"changed": None, "swapped": None, "rows": [(2, 4), (6, 9)]}),
        (Segment("s", 9, rows=Rows(((0, 9),), nudged=3)), {"changed": 3, "swapped": None, "rows": [(0, 9)]}),
        (Segment("s", 9, swapped=3, rows=Rows(((2, 4),))), {"changed": None, "swapped": 3, "rows": [(2, 3), (4, 5)]}),
    ],
)
def test_the_ranges_are_those_of_the_ids_that_were_sent(segment: Segment, found: dict[str, object]) -> None:
    """An edit may have moved an embedding."""
    assert marks(segment, segment_tokens("n", segment)) == found
