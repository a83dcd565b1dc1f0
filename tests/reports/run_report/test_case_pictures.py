"""The pictures of a case are to scale, their labels do not overlap, and they agree with the tables."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from support import case_samples
from support import report_samples as samples
from support.page import Page, contrast

from coldproof.harness.schema.case import Case, ChangeRow, QueueRow, SegmentRow
from coldproof.harness.schema.results import Results
from coldproof.reports.run_report.case.adapter_spans import NameSpan, change_texts, name_spans
from coldproof.reports.run_report.case.cached_token_bounds import BULLET_WIDTH, bullet
from coldproof.reports.run_report.case.geometry import LEFT, MAX_LANES, RIGHT, ROOMY, WIDTH, Scale, text_width
from coldproof.reports.run_report.case.logprob_margins import BOTTOM, TOP, margin_chart
from coldproof.reports.run_report.case.prompt_bars import prompt_bars, segment_text
from coldproof.reports.run_report.case.timeline import Timeline, timeline
from coldproof.reports.run_report.case.timeline_marks import marks
from coldproof.reports.run_report.run_report import TEMPLATES, render_html


def drawn(case: Case) -> Timeline:
    """Return the timeline of a case, and fail if it has none."""
    picture = timeline(case)
    assert picture is not None
    return picture


def with_request(case: Case, number: int, **changes: Any) -> Case:
    """Return the case with changes to one of its requests."""
    rows = [msgspec.structs.replace(row, **changes) if row.request == number else row for row in case.requests]
    return msgspec.structs.replace(case, requests=rows)


# The timeline


def test_a_bar_is_split_where_the_first_token_came() -> None:
    """The axis is linear. The cached part of the prefill is as large as the cached part of the prompt."""
    case = with_request(case_samples.stale(), 1, cached_tokens=58)
    scale = Scale(1.13)
    phases = {phase.kind: phase for phase in drawn(case).bars[1].phases}
    assert list(phases) == ["prefill", "cached", "decode"]
    assert phases["prefill"].x == scale.x(0.9)
    assert phases["decode"].x == scale.x(0.96)
    assert phases["cached"].width == pytest.approx(phases["prefill"].width / 2, abs=0.1)
    assert phases["decode"].x + phases["decode"].width == pytest.approx(RIGHT)


def test_preemptions_and_aborts_are_drawn_on_top() -> None:
    """A preemption lasts until the next token, an abort is at the end, and both have labels."""
    case = with_request(
        case_samples.stale(), 1, preempted_at=[0.97, 1.05], resumed_at=[1.0, 1.1], aborted="while decoding"
    )
    one = drawn(case).bars[1]
    assert [phase.kind for phase in one.phases][-2:] == ["preempted", "preempted"]
    assert one.phases[-1].x == Scale(1.13).x(1.05)
    assert one.aborted
    assert {"disconnect (while decoding)", "preempted 2 times"} <= set(one.notes)
    assert {"preempted", "aborted"} <= drawn(case).kinds


def test_the_first_wrong_token_is_marked_at_its_time() -> None:
    """Only the failing bar has the mark."""
    good, bad = drawn(case_samples.stale()).bars
    assert good.pin is None
    assert bad.pin is not None
    assert bad.pin.x == Scale(1.13).x(1.0)
    assert "token 2" in bad.pin.words
    assert (good.kind, bad.kind, bad.failing) == ("right", "wrong", True)


def test_without_a_time_of_its_first_token_a_request_is_drawn_as_prefill() -> None:
    """No time is made up."""
    picture = drawn(samples.case())
    assert [one.phases[0].kind for one in picture.bars] == ["prefill"] * 4
    assert not any(phase.kind == "decode" for one in picture.bars for phase in one.phases)
    assert (picture.strips, picture.grounds, picture.arrows, picture.pool) == ([], [], [], None)
    assert [mark.kind for mark in picture.marks] == ["change"]


@pytest.mark.parametrize(("writer", "reader"), [(0, 1), (1, 0)])
def test_an_arrow_leads_from_writer_to_reader(writer: int, reader: int) -> None:
    """The arrow may point downwards or upwards."""
    case = with_request(with_request(case_samples.stale(), 1, written_by=None), reader, written_by=writer)
    (arrow,) = drawn(case).arrows
    numbers = [float(number) for number in re.findall(r"-?[0-9.]+", arrow.path)]
    assert (numbers[1] < numbers[-1]) is (writer < reader)
    assert arrow.words == f"r{reader} reused KV that r{writer} had computed for adapter {'AB'[writer]}"


def test_there_is_no_arrow_from_an_unknown_or_hidden_writer() -> None:
    """The writer may be unknown or not in the picture."""
    assert drawn(with_request(case_samples.stale(), 1, written_by=None)).arrows == []
    long = case_samples.many_requests(120)
    assert long.requests[117].written_by == 0
    assert drawn(long).arrows == []


def test_the_ground_of_a_lane_shows_the_content_of_its_name() -> None:
    """The ground changes at the reload, and the strip above it has the labels."""
    picture = drawn(case_samples.stale())
    (strip,) = picture.strips
    assert [band.words for band in strip.bands] == ["adapter A", "adapter B"]
    first, then = picture.grounds
    assert (first.tone, then.tone) == (strip.bands[0].tone, strip.bands[1].tone)
    assert first.tone != then.tone
    assert first.x + first.width == Scale(1.13).x(0.45)
    assert then.x == Scale(1.13).x(0.83)
    assert picture.bars[1].x > then.x
    assert first.height == picture.bottom - picture.top


@pytest.mark.parametrize("count", [1, ROOMY, ROOMY + 1, MAX_LANES, 200])
def test_any_number_of_lanes_stays_within_the_picture(count: int) -> None:
    """At most 48 lanes are drawn without overlap, and the failing one is among them."""
    picture = drawn(case_samples.many_requests(count))
    assert len(picture.bars) == min(count, MAX_LANES)
    assert any(one.failing for one in picture.bars)
    for one in picture.bars:
        assert one.x >= LEFT
        assert all(phase.x + phase.width <= RIGHT + 0.2 for phase in one.phases)
        assert picture.top <= one.y < one.y + one.height <= picture.bottom
    assert all(upper.y + upper.height < lower.y for upper, lower in pairwise(picture.bars))
    assert picture.bars[0].roomy is (count <= ROOMY)


@pytest.mark.parametrize("count", [1, 4, 12, 40])
def test_labels_of_marks_do_not_overlap(count: int) -> None:
    """Labels get rows or positions of their own; labels without room are only in the table."""
    changes = [
        ChangeRow(step=i, kind="in-place reload", name="tenant", content="AB"[i % 2], began=i / 50, ended=i / 50 + 0.01)
        for i in range(count)
    ]
    labels = [mark.label for mark in marks(samples.case(changes=changes), Scale(1.0)) if mark.label is not None]
    assert len(labels) >= min(count, 4)
    spans: dict[float, list[tuple[float, float]]] = {}
    for label in labels:
        wide = text_width(label.words)
        left = label.x if label.anchor == "start" else label.x - wide
        assert left >= 0
        assert left + wide <= WIDTH
        spans.setdefault(label.y, []).append((left, left + wide))
    for row in spans.values():
        assert all(one[1] <= other[0] for one, other in pairwise(sorted(row)))


def test_the_pool_is_drawn_where_it_was_in_use() -> None:
    """The largest usage is shown, and the pool is not drawn if it was never used."""
    pool = drawn(case_samples.stale()).pool
    assert pool is not None
    assert pool.most == "25 %"
    for samples_of_queue in ([], [QueueRow(at=0.1, running=1.0)], [QueueRow(at=0.1, pool_usage=0.0)]):
        assert drawn(msgspec.structs.replace(case_samples.stale(), queue=samples_of_queue)).pool is None


# Names


def change(kind: str, content: str, at: float, **more: Any) -> ChangeRow:
    """Return a change of `tenant` that takes a tenth of a second."""
    return ChangeRow(
        step=0, **{"kind": kind, "name": "tenant", "content": content, "began": at, "ended": at + 0.1, **more}
    )


def test_a_name_stands_for_one_content_at_a_time() -> None:
    """During a change the content is undetermined, a refused change keeps it, and an unload removes it."""
    story = [
        change("load", "A", 0.0),
        change("in-place reload", "B", 1.0),
        change("in-place reload", "C", 2.0, refused=True),
        change("unload", "", 3.0),
        change("reset", "", 3.5, name=""),
        change("reset", "", 3.7, name="the second tier"),
        change("load", "A", 4.0),
    ]
    case = samples.case(changes=story)
    assert name_spans(case, 5.0) == {
        "tenant": [NameSpan("A", 0.1, 1.0), NameSpan("B", 1.1, 3.0), NameSpan("A", 4.1, 5.0)]
    }
    assert [text for _, text in change_texts(case)] == [
        "load tenant as adapter A",
        "in-place reload tenant: adapter A → adapter B",
        "in-place reload tenant: adapter B → adapter C (refused)",
        "unload tenant, which referred to adapter B",
        "reset of the prefix cache",
        "reset of the prefix cache, the second tier",
        "load tenant as adapter A",
    ]


# The prompts


def test_a_prompt_is_to_scale_and_a_name_has_one_tone() -> None:
    """Segments are in order over the width of the longest prompt, with ticks for blocks."""
    bars = prompt_bars(case_samples.stale())
    assert bars is not None
    first, second = bars.lanes
    scale = Scale(116.0)
    assert [piece.x for piece in second.pieces] == [scale.x(0), scale.x(4), scale.x(100)]
    assert first.pieces[1].tone == second.pieces[1].tone != second.pieces[2].tone
    assert first.blocks is not None
    assert (first.blocks.first, first.blocks.last) == (scale.x(16), scale.x(112) + 1)
    assert first.blocks.gap + 1 == pytest.approx((RIGHT - LEFT) * 16 / 116, abs=0.001)
    assert second.pieces[1].edits == [scale.x(4 + 90.5)]
    assert bars.edited


def test_names_beyond_the_colours_have_dots() -> None:
    """The seventh name has the colour of the first one, and dots."""
    names = [SegmentRow(name=f"part {i}", tokens=20) for i in range(7)]
    bars = prompt_bars(with_request(case_samples.stale(), 0, segments=names, prompt_tokens=140))
    assert bars is not None
    samples_of_queue = [(key.tone, key.dotted) for key in bars.keys]
    assert samples_of_queue[0] == (0, False)
    assert samples_of_queue[6] == (0, True)
    assert len(samples_of_queue) == len(set(samples_of_queue))
    assert [piece.dotted for piece in bars.lanes[0].pieces] == [False] * 6 + [True]


def test_what_is_shared_hit_and_wrong_is_marked_below() -> None:
    """Each mark goes from the first to the last token concerned."""
    bars = prompt_bars(case_samples.stale())
    assert bars is not None
    first, second = bars.lanes
    assert (first.shared, first.hit, first.wrong) == (None, None, None)
    ends = [stretch.x + stretch.width for stretch in (second.shared, second.hit, second.wrong) if stretch is not None]
    assert ends == pytest.approx([Scale(116.0).x(94), Scale(116.0).x(112), Scale(116.0).x(32)])
    assert second.pin is not None
    assert second.pin.words == "✕ wrong KV from position 0 to 31"
    assert second.broken
    assert second.notes == ["112 of 116 hit", "94 shared with r0"]


def test_very_small_blocks_have_no_ticks() -> None:
    """Blocks of one token in a long prompt would be too dense."""
    long = SegmentRow(name="stem", tokens=4000)
    case = with_request(case_samples.stale(), 0, segments=[long], prompt_tokens=4000)
    bars = prompt_bars(msgspec.structs.replace(case, block_size=1))
    assert bars is not None
    assert not bars.blocks_shown
    assert {lane.blocks for lane in bars.lanes} == {None}


def test_a_case_without_requests_has_no_prompts() -> None:
    """Then there is no chart."""
    assert prompt_bars(samples.case(requests=[])) is None


def test_a_segment_describes_its_edits() -> None:
    """The text has name, length, edits and the origin."""
    row = SegmentRow(name="stem", tokens=9, changed=3, swapped=5, inherited=2)
    assert segment_text(row) == "stem:9 (from r2, token 3 changed and tokens 5 and 6 swapped)"
    assert segment_text(SegmentRow(name="tail", tokens=1)) == "tail:1"


# Margins and bounds


def test_gaps_are_drawn_in_proportion_beside_the_noise() -> None:
    """The first difference has a colour of its own."""
    case = samples.case(noise_nats=0.48)
    picture = margin_chart(case)
    assert picture is not None
    assert [column.kind for column in picture.columns] == ["same", "same", "first"] + ["differs"] * 21
    assert max(column.height for column in picture.columns) == BOTTOM - TOP
    assert picture.columns[0].height == pytest.approx((BOTTOM - TOP) * 0.731 / 0.961, abs=0.1)
    assert picture.floor == pytest.approx(BOTTOM - (BOTTOM - TOP) * 0.48 / 0.961, abs=0.1)
    assert picture.columns[2].warm == "⏎"


def test_noise_above_every_gap_is_the_top_of_the_strip() -> None:
    """Otherwise a difference within the noise would seem to exceed it."""
    picture = margin_chart(samples.case(noise_nats=1.922))
    assert picture is not None
    assert picture.floor == TOP
    assert max(column.height for column in picture.columns) == pytest.approx((BOTTOM - TOP) / 2, abs=0.1)


def test_there_is_no_strip_without_gaps_and_no_floor_without_noise() -> None:
    """What the oracle does not report is not drawn."""
    silent = [msgspec.structs.replace(row, expected_gap=None) for row in samples.case().tokens]
    assert margin_chart(samples.case(tokens=silent)) is None
    assert margin_chart(samples.case(tokens=[])) is None
    exact = margin_chart(samples.case())
    assert exact is not None
    assert (exact.floor, exact.floor_words) == (None, None)


def test_a_long_answer_is_drawn_around_its_first_difference() -> None:
    """No column is too thin to be seen."""
    picture = margin_chart(samples.case(tokens=[samples.token(i, 700) for i in range(1000)], first_difference=700))
    assert picture is not None
    assert len(picture.columns) <= 131
    assert [column.kind for column in picture.columns].count("first") == 1
    assert picture.right <= RIGHT


@pytest.mark.parametrize(
    ("least", "most", "count", "x", "broken"),
    [
        (0, 100, 50, 0.0, False),
        (50, 100, 25, 60.0, True),
        (None, 0, 100, 0.0, True),
        (100, 100, 100, BULLET_WIDTH, False),
    ],
)
def test_a_bullet_holds_the_count_against_what_may_be(
    least: int | None, most: int, count: int, x: float, broken: bool
) -> None:
    """The bullet's scale is the whole prompt."""
    row = samples.request(0, prompt_tokens=100, cached_at_least=least, cached_at_most=most, cached_tokens=count)
    graph = bullet(row)
    assert graph is not None
    assert (graph.x, graph.count, graph.broken) == (x, BULLET_WIDTH * count / 100, broken)
    assert graph.width >= 2


@pytest.mark.parametrize("unknown", ["cached_tokens", "cached_at_most"])
def test_there_is_no_bullet_without_a_count_or_a_bound(unknown: str) -> None:
    """A missing value is not zero."""
    assert bullet(samples.request(0, **{unknown: None})) is None


# The page


def page_of(case: Case) -> tuple[str, Page]:
    """Return the page of a run with this case, as text and as parsed by a browser."""
    source = render_html(samples.results(case))
    return source, Page(source)


def test_the_sections_of_a_case_are_in_order() -> None:
    """The order is what failed, when, in which prompts and tokens, the origin, the rate, and the reproduction."""
    source, _ = page_of(msgspec.structs.replace(case_samples.stale(), provenance=["Request 1 read wrong KV."]))
    wanted = [
        'class="sentence"', "Timeline</h4>", "Prompts and shared prefixes", "cold and warm",
        "Cached tokens, reported and expected", "Origin of the reused KV", "Reproduction rate", "Reproduce<",
        "End of the engine",
    ]  # fmt: skip
    places = [source.index(part) for part in wanted]
    assert places == sorted(places)


def test_the_tables_say_what_the_pictures_show() -> None:
    """The tables are for readers who cannot see the pictures."""
    case = with_request(case_samples.stale(), 1, preempted_at=[0.97], resumed_at=[1.011], aborted="while decoding")
    _, page = page_of(case)
    for part in (
        "first token 0.960",
        "first wrong token (2) 1.000",
        "preempted 0.970 – 1.011",
        "client disconnect (while decoding)",
        "computed by r0",
        "94 shared with r0",
        "nonce:4 + stem:96 (token 90 changed) + tail:16",
        "in-place reload tenant: adapter A → adapter B",
        "0.450 – 0.830",
        "25.0 %",
        "r1 reused KV that r0 had computed for adapter A.",
    ):
        assert part in page.text, part


def test_every_picture_is_named_or_hidden_from_screen_readers() -> None:
    """No picture is without a name, and none repeats its numbers to a screen reader."""
    _, page = page_of(case_samples.many_requests(20))
    pictures = [attributes for tag, attributes in page.elements if tag == "svg"]
    assert len(pictures) > 3
    ids = set(page.attributes("id"))
    for picture in pictures:
        named = picture.get("aria-labelledby", "").split()
        assert picture.get("aria-hidden") == "true" or (picture["role"] == "img" and named and set(named) <= ids)


def test_the_engines_own_gap_has_a_column_where_it_is_known() -> None:
    """Without the engine's own margin there is no such column."""
    rows = [msgspec.structs.replace(row, observed_gap=0.123) for row in samples.case().tokens]
    for tokens, shown in ((rows, True), (samples.case().tokens, False)):
        _, page = page_of(samples.case(tokens=tokens))
        assert ("Warm margin" in page.text) is shown
        assert ("0.123 nats" in page.text) is shown


@pytest.mark.parametrize("count", [2, 60])
def test_hostile_names_stay_text_in_the_pictures(count: int) -> None:
    """Names of adapters, segments and changes may come from elsewhere."""
    case = case_samples.many_requests(count)
    shown = samples._poison(msgspec.to_builtins(samples.results(case)), samples.HOSTILE)
    source = render_html(msgspec.convert(shown, Results))
    page = Page(source)
    assert page.open == []
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"img", "iframe", "foreignobject", "foreignObject", "use", "image", "a:b"}
    names = {name for _, attributes in page.elements for name in attributes}
    assert not names & {"style", "onload", "onerror", "xlink:href"}
    assert "url(" not in source


def test_fifty_cases_with_all_their_pictures_stay_small() -> None:
    """The page is smaller than five megabytes."""
    cases = [msgspec.structs.replace(case_samples.stale(), id=f"{i:08x}") for i in range(50)]
    assert len(render_html(samples.results(*cases)).encode()) < 5_000_000


def blended(colour: str, back: str, opacity: float) -> str:
    """Return a colour blended over another with an opacity."""
    pairs = [(int(colour[i : i + 2], 16), int(back[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(one * opacity + other * (1 - opacity)):02x}" for one, other in pairs)


def test_words_can_be_read_on_every_tone_in_both_themes() -> None:
    """Labels lie on the colours; notes, marks and answers lie on the lighter ground of a lane."""
    sheets = [str(TEMPLATES.files((name,))) for name in ("style.css", "case.css")]
    for place in (0, 1):
        parts = [re.split(r"@media \(prefers", sheet)[place] for sheet in sheets]
        theme = dict(re.findall(r"--([\w-]+): (#\w{6})", "".join(parts)))
        grounds = [name for name in theme if name.startswith("tone")]
        assert len(grounds) == 6
        for ground in grounds:
            assert contrast(theme["ink"], theme[ground]) >= 4.5, ground
            lane = blended(theme[ground], theme["back"], 0.55)
            for ink in ("ink", "quiet", "v-violated"):
                assert contrast(theme[ink], lane) >= 4.5, (ink, ground)
