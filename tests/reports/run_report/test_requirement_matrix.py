"""The matrix and each requirement's own section: every verdict at its place, every link to its evidence."""

from __future__ import annotations

import re

import msgspec
import pytest
from support import report_samples as samples
from support.page import Page, contrast
from support.paths import ROOT

from coldproof.adapters.registry import CELLS
from coldproof.harness.judgement.requirement import statement_parts
from coldproof.harness.schema import results as results_module
from coldproof.harness.schema.results import Bin, Distribution, LayerVerdict, RequirementResult, Results
from coldproof.harness.schema.verdict import Verdict
from coldproof.reports.format.text import report_name
from coldproof.reports.run_report.run_report import LAYER_ABOUT, TEMPLATES, render_html
from coldproof.reports.views.requirements import Matrix, areas, matrix, requirement_views

HITS = Distribution(
    name="Cached tokens of a request",
    unit="requests",
    bins=[Bin(label="0", count=30), Bin(label="1–15", count=0), Bin(label="16–31", count=120)],
)


def verdicts(of: Matrix) -> dict[str, list[str | None]]:
    """Return the verdicts of each requirement in the order of the columns."""
    return {
        row.view.requirement.id: [None if cell is None else cell.row.verdict.value for cell in row.cells]
        for area in of.areas
        for row in area.rows
    }


def made(*requirements: RequirementResult) -> Matrix:
    """Return the matrix of these requirements."""
    return matrix(requirement_views(requirements))


def page(*requirements: RequirementResult, **changes: object) -> Page:
    """Return the page of a run with these requirements."""
    return Page(render_html(samples.results(requirements=list(requirements), **changes)))


def one_requirement(**changes: object) -> RequirementResult:
    """Return one requirement with these changes."""
    return msgspec.structs.replace(samples.requirement("LORA-1", "reload"), **changes)


def test_the_columns_of_layers_say_what_a_layer_is() -> None:
    """A reader may not know the guide."""
    names = ("exact", "server")
    layers = [LayerVerdict(layer=name, verdict=Verdict.CONFORMS, examples=9, requests=9) for name in names]
    cells = [samples.cell("default", layer=name) for name in names]
    source = render_html(samples.results(requirements=[one_requirement(layers=layers, cells=cells)]))
    head = source[source.index('id="matrix"') : source.index("</thead>", source.index('id="matrix"'))]
    assert all(LAYER_ABOUT[name] in head for name in names)
    assert LAYER_ABOUT["model"] not in head


# Rows, columns and squares


def test_every_requirement_stands_against_every_cell() -> None:
    """The cell with the most requirements comes first. A requirement without a cell has an empty field there."""
    grid = made(
        samples.requirement("LORA-1", "reload", samples.cell("tight", Verdict.VIOLATED), samples.cell("default")),
        samples.requirement("SALT-1", "salts", samples.cell("default", Verdict.ERROR)),
    )
    assert [name for name, _ in grid.cells] == ["default", "tight"]
    assert verdicts(grid) == {"LORA-1": ["CONFORMS", "VIOLATED"], "SALT-1": ["ERROR", None]}


def test_requirements_stand_under_their_areas() -> None:
    """An area is the part of an id before the dash."""
    grid = made(*(samples.requirement(name, "x") for name in ("LORA-1", "LORA-2", "SALT-1", "odd")))
    assert [(area.name, len(area.rows)) for area in grid.areas] == [("LORA", 2), ("SALT", 1), ("odd", 1)]


def test_requirements_have_a_verdict_over_all_cells_unless_one_cell_says_it() -> None:
    """A verdict that no cell has, such as that of a failed teardown, is shown."""
    odd = msgspec.structs.replace(samples.requirement("LORA-2", "x"), verdict=Verdict.ERROR)
    assert not made(samples.requirement("LORA-1", "x")).overall
    assert made(samples.requirement("LORA-1", "x", samples.cell("a"), samples.cell("b"))).overall
    assert made(odd).overall
    assert "ERROR" in page(odd).text[page(odd).text.index("All cells") :]


def test_every_area_of_the_suites_is_explained() -> None:
    """Each suite has the requirements of one area, and gives its title."""
    for file in (ROOT / "suites").glob("test_*.py"):
        source = file.read_text()
        assert len(set(re.findall(r'@requirement\(\s*"([A-Z]+)-\d', source))) == 1, file
        assert len(re.findall(r'^AREA = "[^"]+"$', source, re.MULTILINE)) == 1, file


def test_an_area_has_the_title_that_its_requirements_give() -> None:
    """An area whose requirements give none, as in older results, has its name alone."""
    titled = msgspec.structs.replace(samples.requirement("LORA-1", "x"), area="adapter changes")
    assert [(area.name, area.about) for area in made(titled, samples.requirement("SALT-1", "x")).areas] == [
        ("LORA", "adapter changes"),
        ("SALT", ""),
    ]


def test_squares_lead_to_the_requirement_in_that_cell() -> None:
    """Anchors follow from the names."""
    shown = page(samples.requirement("LORA-1", "x", samples.cell("tight"), samples.cell("default")))
    links = set(shown.attributes("href", tag="a"))
    assert {"#requirement-lora-1", "#requirement-lora-1-in-tight", "#requirement-lora-1-in-default"} <= links
    rows = [attributes for tag, attributes in shown.elements if tag == "tr"]
    assert "requirement-lora-1-in-tight" in {row.get("id") for row in rows}


def test_anchors_stay_apart_whatever_the_names() -> None:
    """Ids and cells may differ only in characters that an anchor cannot contain."""
    twins = [samples.requirement(name, "x", samples.cell("a b"), samples.cell("a/b")) for name in ("R-1", "r-1", "R-1")]
    ids = list(page(*twins).attributes("id"))
    assert len(ids) == len(set(ids))
    assert {"requirement-r-1", "requirement-r-1-2", "requirement-r-1-3", "cell-a-b", "cell-a-b-2"} <= set(ids)


def test_an_empty_field_has_text_for_screen_readers() -> None:
    """A verdict is a symbol and a word, never a colour alone."""
    shown = page(
        samples.requirement("LORA-1", "x", samples.cell("default"), samples.cell("tight", Verdict.NOT_EXERCISED)),
        samples.requirement("SALT-1", "x", samples.cell("default")),
    )
    grid = shown.text[shown.text.index("Requirements by cell") : shown.text.index("Each requirement and its")]
    assert grid.count("not applicable") == 1
    assert "○ NOT EXERCISED" in grid
    assert "✓ CONFORMS 40 examples" in grid.replace("CONFORMS40", "CONFORMS 40")


def test_a_hundred_cells_and_forty_requirements_stay_small() -> None:
    """All cells are in one table on screen; on paper they are listed under each requirement."""
    names = [f"{name}-{variant}" for variant in range(5) for name in CELLS][:100]
    many = [samples.requirement(f"R-{i}", "x", *(samples.cell(name) for name in names[i % 4 :: 4])) for i in range(40)]
    source = render_html(samples.results(requirements=many))
    assert len(source.encode()) < 2_000_000
    shown = Page(source)
    assert len([i for i in shown.attributes("id", tag="th") if i.startswith("cell-")]) == 100
    assert "The 101 columns do not fit on a printed page" in shown.text


def test_a_run_without_requirements_has_no_matrix_and_no_verdict() -> None:
    """An invalid run shows no verdict either."""
    assert "so nothing is verified" in page().text
    blind = [results_module.SelfTestRow(planted="stale", caught=False, said="nothing")]
    assert "matrix" not in list(page(samples.requirement("LORA-1", "x"), selftest=blind).attributes("id"))


# The filter, and links


def test_every_filtered_element_has_its_verdict_and_area() -> None:
    """This holds for the matrix, requirements, causes, cases and what was not exercised."""
    shown = Page(render_html(samples.results(samples.case())))
    filtered = [attributes for _, attributes in shown.elements if "data-row" in attributes]
    kinds = {box["value"] for tag, box in shown.elements if tag == "input" and box.get("type") == "checkbox"}
    known = {option["value"] for tag, option in shown.elements if tag == "option"} - {""}
    assert {row["data-kind"] for row in filtered} == kinds | {"v-violated"}
    assert {area for row in filtered for area in row["data-area"].split()} == known
    assert {"lora", "ground", "press"} <= known


def test_rows_of_the_matrix_match_the_sections_of_requirements() -> None:
    """A row and its section are shown or hidden together."""
    shown = Page(render_html(samples.results(samples.case())))
    twins = list(shown.attributes("data-twin"))
    assert len(twins) == len(samples.results().requirements)
    assert set(twins) <= set(shown.attributes("id", tag="tbody"))


def test_a_cause_of_several_areas_is_in_each() -> None:
    """A hostile id is not an area of another name."""
    assert areas(["LORA-1", "LORA-3", "SALT-1"]) == "lora salt"
    assert areas([samples.HOSTILE]) == areas([samples.HOSTILE]).strip()
    assert re.fullmatch(r"[a-z0-9_. -]+", areas([samples.HOSTILE]))


def test_every_part_can_be_linked_to() -> None:
    """Each section, requirement, cell and case has a link to itself with a label."""
    shown = Page(render_html(samples.results(samples.case())))
    own = {a["href"][1:]: a["aria-label"] for tag, a in shown.elements if tag == "a" and a.get("class") == "here"}
    parts = {i for tag in ("section", "tbody", "tr") for i in shown.attributes("id", tag=tag)}
    assert parts - own.keys() == set()
    assert own["requirement-salt-1-in-hybrid"] == "Link to SALT-1 in hybrid"
    assert all(label.startswith("Link to ") for label in own.values())


# A requirement's own page


def test_a_statement_is_split_into_its_parts() -> None:
    """Several tests of one requirement keep their own reasons, and line ends of the source are removed."""
    parts = statement_parts(
        "An engine does\n    this.\n\n    Why it can break: a key\n    lacks it (vllm#1). Oracle: cold start. Vacuous"
        " when nothing\n    was hit. So much for that.\n\nSo does that.\n\nWhy it can break: an odd path."
    )
    assert parts.required == ["An engine does this.", "So does that."]
    assert parts.why_it_can_break == ["a key lacks it (vllm#1).", "an odd path."]
    assert parts.oracle == ["cold start."]
    assert parts.vacuous == ["Vacuous when nothing was hit. So much for that."]
    assert statement_parts("") == statement_parts("\n\n \n")


def test_a_requirement_has_its_reports_and_failures() -> None:
    """Public reports are linked and named as in threads."""
    shown = page(
        one_requirement(
            upstream=["https://github.com/vllm-project/vllm/issues/42125", "javascript:alert(1)"],
            fails_on=["A wrong token.", "A stall."],
        )
    )
    assert "Public reports: vllm-project/vllm#42125, javascript:alert(1)" in shown.text
    assert "https://github.com/vllm-project/vllm/issues/42125" in set(shown.attributes("href"))
    assert "javascript:alert(1)" not in set(shown.attributes("href"))
    assert "Any of 2 findings, in any example of LORA-1 A wrong token. A stall." in shown.text


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("https://github.com/a/b.c/pull/7", "a/b.c#7"),
        ("https://github.com/a/b/issues/7#issuecomment-1", "https://github.com/a/b/issues/7#issuecomment-1"),
        ("https://example.org/a/b/issues/7", "https://example.org/a/b/issues/7"),
    ],
)
def test_only_a_plain_issue_is_named_in_short(address: str, name: str) -> None:
    """Other addresses are shown in full, so that the reader sees where a link leads."""
    assert report_name(address) == name


def test_a_distribution_is_a_picture_and_a_table_in_one() -> None:
    """Bars are in proportion to the most frequent value, and the table has every number."""
    shown = page(one_requirement(distributions=[HITS]))
    assert re.search(r"Cached tokens of a request.*requests 0.*30 1–15.*0 16–31.*120", shown.text)
    drawn = list(shown.attributes("width", tag="rect"))  # beside the other pictures' of the page
    assert [width for width in drawn if width in ("25.0", "0.0", "100.0")][:3] == ["25.0", "0.0", "100.0"]


def test_an_empty_distribution_is_no_division_by_zero() -> None:
    """A hand-written file may contain such a distribution."""
    none = [Distribution(name="x", unit="y", bins=[]), Distribution(name="x", unit="y", bins=[Bin(label="0", count=0)])]
    shown = page(one_requirement(distributions=none))
    assert shown.text.count("ValueBary") == 2
    assert "0.0" in list(shown.attributes("width", tag="rect"))


def test_needed_evidence_comes_first() -> None:
    """Counters of zero are included, because they explain a verdict that is not exercised."""
    (view,) = requirement_views([one_requirement(evidence={"a": 1.0, "hits": 0.0, "z": 2.0}, needed=["hits", "gone"])])
    assert (view.needed, view.further) == ({"hits": 0.0}, {"a": 1.0, "z": 2.0})
    assert "2 more counters" in page(view.requirement).text


def test_hostile_text_of_requirements_is_inert() -> None:
    """Addresses, reasons and bins may come from a file from elsewhere."""
    odd = Distribution(name=samples.HOSTILE, unit=samples.HOSTILE, bins=[Bin(label=samples.HOSTILE, count=1)])
    shown = page(one_requirement(upstream=[samples.HOSTILE], fails_on=[samples.HOSTILE], distributions=[odd]))
    assert shown.open == []
    assert not {"img", "iframe"} & {tag for tag, _ in shown.elements}
    assert [tag for tag, _ in shown.elements].count("script") == 1


# Colours


def themes(sheet: str) -> list[dict[str, str]]:
    """Return the custom properties of a sheet, light and dark."""
    blocks = str(TEMPLATES.files((sheet,))).split("@media (prefers")[:2]
    return [dict(re.findall(r"--([\w-]+): (#\w{6})", block)) for block in blocks]


@pytest.mark.parametrize("theme", [0, 1])
@pytest.mark.parametrize("verdict", list(Verdict))
def test_every_square_can_be_read_in_both_themes(verdict: Verdict, theme: int) -> None:
    """The contrast is checked for the verdict and for the number of examples."""
    kind = verdict.name.lower().replace("_", "-")
    back, inks = themes("matrix.css")[theme][f"t-{kind}"], themes("style.css")[theme]
    for ink in (f"v-{kind}", "quiet"):
        assert contrast(inks[ink], back) >= 4.5, (ink, back)


def test_results_with_all_of_it_survive_a_file() -> None:
    """The results are equal after a round trip."""
    results = samples.results(requirements=[one_requirement(distributions=[HITS], upstream=["x"], fails_on=["y"])])
    assert msgspec.json.decode(msgspec.json.encode(results), type=Results) == results
