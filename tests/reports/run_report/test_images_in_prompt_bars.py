"""Images are drawn in the bars of prompts as coloured patches, whatever a case file contains."""

from __future__ import annotations

import re

import msgspec
import pytest
from support import report_samples as samples

from coldproof.adapters.protocol.images import PATCHES, Arguments, Encoding
from coldproof.harness.case.rows.prompts import marks
from coldproof.harness.schema.case import Case, ImageRow, SegmentRow
from coldproof.harness.workload.steps import Image, Segment
from coldproof.harness.workload.tokens import segment_tokens
from coldproof.reports.run_report.case.geometry import Scale
from coldproof.reports.run_report.case.prompt_bars import BAR, PromptBars, prompt_bars, segment_text
from coldproof.reports.run_report.run_report import render_html

NONCE, LEGEND = SegmentRow(name="nonce", tokens=4), "image in place of its tokens"
CAT = ImageRow(name="cat", colours=[0x102030, 0xFFFFFF, 0, 0x00FF00], encoding="png", uuid="mine", changed=True)
HOSTILE = '"><script>alert(1)</script>'


def case(image: ImageRow, tokens: int = 40) -> Case:
    """Return a case with one prompt of a nonce and an image."""
    shown, tail = SegmentRow(name="first", tokens=tokens, image=image), SegmentRow(name="tail", tokens=40 - tokens)
    return samples.case(requests=[samples.request(0, prompt_tokens=44, segments=[NONCE, shown, tail])])


def bars(image: ImageRow, tokens: int = 40) -> PromptBars:
    found = prompt_bars(case(image, tokens))
    assert found is not None
    return found


def test_a_thumbnail_is_as_high_as_the_bar_and_begins_with_it() -> None:
    """The patches are in order, row by row."""
    (lane,) = bars(CAT).lanes
    image = lane.pieces[1].image
    assert image is not None
    assert 2 * image.side == BAR
    assert image.patches == [
        (0, 0, "#102030"),
        (image.side, 0, "#ffffff"),
        (0, image.side, "#000000"),
        (image.side, image.side, "#00ff00"),
    ]
    assert lane.pieces[1].label == "cat"


@pytest.mark.parametrize(("changed", "marks_"), [(True, 1), (False, 0)])
def test_a_changed_pixel_is_marked(changed: bool, marks_: int) -> None:
    """The mark is in the middle of the image, like that of a changed token."""
    edits = bars(msgspec.structs.replace(CAT, changed=changed)).lanes[0].pieces[1].edits
    assert edits == [Scale(44.0).x(24.5)] * marks_


def test_a_thumbnail_fits_into_a_short_segment() -> None:
    """The segment has one token of 44."""
    image = bars(CAT, tokens=1).lanes[0].pieces[1].image
    assert image is not None
    assert 2 * image.side <= round(Scale(44.0).x(1) - Scale(44.0).x(0), 1)


@pytest.mark.parametrize("colours", [[], [1, 2], [1, 2, 3]])
def test_colours_that_are_no_square_are_not_drawn(colours: list[int]) -> None:
    """The rest of the bar is drawn."""
    (lane,) = bars(msgspec.structs.replace(CAT, colours=colours)).lanes
    assert lane.pieces[1].image is None


def test_image_data_of_a_case_file_is_inert() -> None:
    """Names are text, and colours become numbers of six digits."""
    hostile = ImageRow(
        name=HOSTILE, uuid=HOSTILE, encoding=HOSTILE, arguments=HOSTILE, colours=[-1, 1 << 40, 2**52 + 7, 9]
    )
    page = render_html(samples.results(case(hostile)))
    assert HOSTILE not in page
    assert "<script>alert" not in page
    assert LEGEND in page
    fills = re.findall(r'fill="(.*?)"', page)
    assert fills
    assert all(re.fullmatch(r"#[0-9a-f]{6}|none|currentColor", fill) for fill in fills)


def test_the_legend_names_images_only_if_there_are_any() -> None:
    """The text of a segment describes the image."""
    plain = samples.case(requests=[samples.request(0, prompt_tokens=4, segments=[NONCE])])
    assert LEGEND not in render_html(samples.results(plain))
    said = segment_text(SegmentRow(name="first", tokens=16, image=CAT))
    assert said == "first:16 (image cat, one pixel changed, named mine by the client, sent as png)"
    described = msgspec.structs.replace(CAT, arguments="do_rescale=True")
    assert segment_text(SegmentRow(name="first", tokens=16, image=described)).endswith(
        "processed with do_rescale=True)"
    )


def test_colours_are_those_of_the_image_that_was_sent() -> None:
    """There is a colour for each patch, and another image has other colours."""
    cat, dog = (Segment("s", 16, image=Image(name, 3, Encoding.PNG, "mine")) for name in ("cat", "dog"))
    found, other = (marks(one, segment_tokens("n", one))["image"] for one in (cat, dog))
    assert (found.name, found.changed, found.uuid, found.encoding) == ("cat", True, "mine", "png")
    assert len(found.colours) == PATCHES * PATCHES
    assert found.arguments == ""
    described = Segment("s", 16, image=Image("cat", arguments=Arguments.RESCALED))
    assert marks(described, segment_tokens("n", described))["image"].arguments == "do_rescale=True, rescale_factor=2.0"
    assert found.colours != other.colours
