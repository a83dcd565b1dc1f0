"""Several engines side by side: verdicts, links to the evidence and comparability."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from support import report_samples as samples
from support.page import Page
from support.side_by_side_samples import everything, run, source

from coldproof.harness.cli import main as command_line
from coldproof.harness.schema.results import (
    InjectedFault,
    RequirementResult,
    Results,
    StatementParts,
    encode,
)
from coldproof.harness.schema.verdict import VERDICT_MEANING, Verdict
from coldproof.reports.exports.write import write_all
from coldproof.reports.format.text import visible
from coldproof.reports.side_by_side.columns import Source, labels
from coldproof.reports.side_by_side.kinds import ENGINES, REGISTER, RELEASES, TWO_RUNS, Kind
from coldproof.reports.side_by_side.markdown import side_by_side_markdown
from coldproof.reports.side_by_side.matrix import Made, Row, SideBySide, side_by_side
from coldproof.reports.side_by_side.page import render_side_by_side


@pytest.fixture(scope="module")
def full() -> SideBySide:
    """Return a page with everything that one can have."""
    return engines(everything())


def engines(sources: list[Source]) -> SideBySide:
    """The page of several engines."""
    return side_by_side(sources, ENGINES)


def of(*runs: Results) -> SideBySide:
    """Return these runs side by side."""
    return engines([source(one) for one in runs])


def rows(shown: SideBySide) -> dict[str, Row]:
    """Return the rows by requirement."""
    return {row.id: row for area in shown.areas for row in area.rows}


def one_requirement(verdict: Verdict, **changes: object) -> RequirementResult:
    """Return one requirement with this verdict, in one cell, and these changes."""
    of_cell = {name: changes.pop(name) for name in ("absent", "missing") if name in changes}
    row = samples.cell(verdict=verdict, reason=str(changes.get("reason", "so it is")), **of_cell)
    return msgspec.structs.replace(samples.requirement("LORA-1", "reload", row), **changes)


def squares(page: Page) -> list[str]:
    """Return the classes of the matrix's fields, in the order of the page."""
    return [at["class"] for tag, at in page.elements if tag == "td" and at.get("class", "").startswith(("v-", "abs"))]


# Rows and columns


def test_a_requirement_that_a_run_does_not_have_is_an_empty_square(full: SideBySide) -> None:
    """An invalid run has no verdict either."""
    found = {
        row.id: [None if square is None else square.requirement.verdict for square in row.cells]
        for row in rows(full).values()
    }
    assert found["LORA-1"] == [Verdict.VIOLATED, Verdict.NOT_EXERCISED, None, None]
    assert found["LORA-2"] == [None, Verdict.CONFORMS, None, None]
    page = Page(render_side_by_side(full))
    assert squares(page).count("absent") == sum(verdicts.count(None) for verdicts in found.values())
    assert page.text.count("the run is invalid") == len(found)


def test_requirements_stand_by_number_whatever_the_order_of_the_runs() -> None:
    """LORA-2 comes before LORA-10, and areas are sorted by name."""
    names = ["SALT-1", "LORA-10", "LORA-2", "odd", "9" * 5000]
    runs = [run(requirements=[samples.requirement(name, "x") for name in order]) for order in (names, names[::-1])]
    assert list(rows(of(*runs))) == list(rows(of(*runs[::-1])))
    assert [name for name in rows(of(*runs)) if name.startswith(("LORA", "SALT"))] == ["LORA-2", "LORA-10", "SALT-1"]


def test_a_square_says_how_much_was_tried_and_found_and_whether_all_cells_agree() -> None:
    """A verdict that no cell has is not counted by cells."""
    two = samples.requirement("R-1", "x", samples.cell("a", Verdict.VIOLATED), samples.cell("b"), cases=("1", "2"))
    found = rows(of(run(requirements=[msgspec.structs.replace(two, verdict=Verdict.VIOLATED)])))["R-1"].cells[0]
    lost = rows(of(run(requirements=[msgspec.structs.replace(two, verdict=Verdict.ERROR)])))["R-1"].cells[0]
    assert found is not None
    assert lost is not None
    assert found.figures == ["80 examples", "2 counterexamples", "in 1 of 2 cells"]
    assert lost.figures == ["80 examples", "2 counterexamples"]


@pytest.mark.parametrize(
    ("runs", "found"),
    [
        ([run(), run("SGLang")], ["vLLM 0.32.0", "SGLang 0.32.0"]),
        ([run(), run(version="0.33.0")], ["vLLM 0.32.0", "vLLM 0.33.0"]),
        ([run(), run(adapter="endpoint")], ["vLLM 0.32.0 (vllm adapter)", "vLLM 0.32.0 (endpoint adapter)"]),
        ([run(), run(worker="fingerprint")], ["vLLM 0.32.0 (model worker)", "vLLM 0.32.0 (fingerprint worker)"]),
        (
            [run(requirements=[samples.requirement("R-1", "x", samples.cell(name))]) for name in ("tight", "default")],
            ["vLLM 0.32.0 (cell tight)", "vLLM 0.32.0 (cell default)"],
        ),
        ([run(), run()], ["vLLM 0.32.0 (0/results.json)", "vLLM 0.32.0 (1/results.json)"]),
        ([run(engine=None), run()], ["no engine (0/results.json)", "vLLM 0.32.0"]),
    ],
)
def test_no_two_columns_have_the_same_label(runs: list[Results], found: list[str]) -> None:
    """Each label has as many details as are needed, and no more."""
    assert labels([source(one, name=f"{place}/results.json") for place, one in enumerate(runs)]) == found


def test_indistinguishable_runs_are_numbered() -> None:
    """Runs without file names may be equal."""
    assert labels([source(run(), name=""), source(run(), name="")]) == ["vLLM 0.32.0", "vLLM 0.32.0-2"]


def test_a_different_statement_is_reported() -> None:
    """An older version may have tested something else under the same id."""
    changed = msgspec.structs.replace(
        one_requirement(Verdict.CONFORMS), parts=StatementParts(required=["Another thing."])
    )
    shown = of(run(requirements=[one_requirement(Verdict.CONFORMS)]), run("SGLang", requirements=[changed]))
    assert rows(shown)["LORA-1"].otherwise == ["SGLang 0.32.0"]
    assert "The statement differs in the run of SGLang 0.32.0." in Page(render_side_by_side(shown)).text


# Why

ANOTHER = "another cell, engine build or adapter"


@pytest.mark.parametrize(
    ("requirement", "help"),
    [
        (one_requirement(Verdict.UNSUPPORTED, absent=["kv events"]), f"{ANOTHER} that has: kv events"),
        (one_requirement(Verdict.UNSUPPORTED, absent=["pool size known"]), f"{ANOTHER} that has: pool size known"),
        (one_requirement(Verdict.UNSUPPORTED, reason="kv events: 404"), ANOTHER),
        (
            one_requirement(
                Verdict.NOT_EXERCISED, needed=["a", "b", "c"], evidence={"a": 1.0, "c": 3.0}, missing=["c"]
            ),
            "a larger budget, or a cell that makes this evidence more likely: b; c",
        ),
        (one_requirement(Verdict.NOT_EXERCISED), "a larger budget, or a cell"),
        (one_requirement(Verdict.INCONCLUSIVE), "settings with reproducible cold answers, or more tries"),
        (one_requirement(Verdict.ERROR), "a run without errors; the engine's log is in the report folder"),
        (one_requirement(Verdict.CONFORMS), ""),
        (one_requirement(Verdict.VIOLATED), ""),
        (one_requirement(Verdict.KNOWN_ISSUE), ""),
    ],
)
def test_an_undecided_requirement_has_advice(requirement: RequirementResult, help: str) -> None:
    """The advice names the missing capability or the missing evidence."""
    shown = of(run(requirements=[requirement]))
    (square,) = rows(shown)["LORA-1"].cells
    assert square is not None
    assert square.help == help
    assert (f"What would help: {help}." in Page(render_side_by_side(shown)).text) is bool(help)
    assert (f"What would help: {help}." in side_by_side_markdown(shown)) is bool(help)


def test_the_page_says_why_each_engine_has_its_verdict(full: SideBySide) -> None:
    """Reason, evidence, cells and causes are below the statement, and a long reason is complete in the fold."""
    long = "because " * 60
    shown = of(run(requirements=[one_requirement(Verdict.UNSUPPORTED, reason=long)]))
    assert long.strip() in Page(render_side_by_side(shown)).text
    text = Page(render_side_by_side(full)).text
    below = text[text.index("Statements and reasons", text.index("Requirements by engine")) :]
    assert "A conforming engine answers as the new adapter cold" in below
    assert "VIOLATED vLLM 0.32.0 2 distinct counterexamples" in below
    assert "1 counterexample, not waived: Request r3" in below
    assert "1 counterexample, waived: Request r3" in below
    assert "never seen: preemptions" in below
    assert re.search(r"tight\s*○ NOT EXERCISED\s*never seen: preemptions", below)


def test_the_page_says_why_a_requirement_matters_and_how_it_is_detected() -> None:
    """The section uses the same template as the report of a run."""
    parts = StatementParts(required=["It does."], why_it_can_break=["a key."], oracle=["a cold start."])
    one = msgspec.structs.replace(samples.requirement("LORA-1", "reload"), parts=parts)
    text = Page(render_side_by_side(engines([source(run(requirements=[one]))]))).text
    assert "It can break: a key." in text
    assert "Compared with: a cold start." in text


def test_every_run_has_its_line_on_top(full: SideBySide) -> None:
    """The line has the counts of verdicts, times, rule, oracle and date. An invalid run shows no verdict."""
    page = Page(render_side_by_side(full))
    top = page.text[: page.text.index("What can be compared", page.text.index("Started"))]
    assert "4 runs of 3 engines, requirement by requirement" in top
    assert "38.2 s to the first, 6 min 53 s to the last" in top
    assert "token-exact, oracle cold-engine" in top
    assert "2026-03-01 12:00 UTC" in top
    assert "RUN INVALID" in top
    assert "INCOMPLETE RUN" in top
    assert "so no verdict of this run is valid" in top
    assert list(page.attributes("data-label")).count("Violated") == 3


def test_an_injected_fault_is_marked_in_its_column() -> None:
    """The column is marked because its fields look like any others."""
    fault = InjectedFault(name="salts-are-cut", summary="s", stands_for="f", acted=True)
    shown = of(run(fault=fault))
    marked = [at["class"] for tag, at in Page(render_side_by_side(shown)).elements if tag == "strong"]
    assert marked == ["line wrong", "under wrong"]
    assert "FAULT INJECTED" in side_by_side_markdown(shown)


# The page


def test_squares_lead_into_the_runs_own_reports(tmp_path: Path) -> None:
    """Every link leads to an anchor that exists, for any id."""
    twins = [samples.requirement(name, "x") for name in ("R-1", "r-1", "LORA-3 ü/<")]
    write_all(run(requirements=twins), tmp_path / "a run")
    assert command_line.main(["side-by-side", str(tmp_path / "a run"), "--out", str(tmp_path / "index.html")]) == 0
    page = Page((tmp_path / "index.html").read_text(encoding="utf-8"))
    links = {link for link in page.attributes("href") if not link.startswith("#")}
    assert {link.partition("#")[0] for link in links} == {"a%20run/index.html"}
    ids = set(Page((tmp_path / "a run" / "index.html").read_text(encoding="utf-8")).attributes("id"))
    anchors = {link.partition("#")[2] for link in links} - {""}
    assert len(anchors) == 3
    assert anchors <= ids


def test_a_field_without_a_link_has_the_same_text() -> None:
    """Only the link is missing."""
    with_link, without = (Page(render_side_by_side(engines([source(run(), link)]))) for link in ("a/index.html", ""))
    assert squares(with_link) == squares(without)
    assert not [link for link in without.attributes("href") if not link.startswith("#")]
    assert "report at x/results.json" in without.text


def test_the_filter_knows_every_verdict_of_a_row(full: SideBySide) -> None:
    """The filter works on the matrix and on the sections below it."""
    page = Page(render_side_by_side(full))
    filtered = [at for _, at in page.elements if "data-row" in at]
    kinds = {box["value"] for tag, box in page.elements if tag == "input" and box.get("type") == "checkbox"}
    known = {option["value"] for tag, option in page.elements if tag == "option"} - {""}
    assert {kind for row in filtered for kind in row["data-kind"].split()} == kinds
    assert {area for row in filtered for area in row["data-area"].split()} == known
    assert "v-violated v-not-exercised" in {row["data-kind"] for row in filtered}
    assert set(page.attributes("data-twin")) == set(page.attributes("id", tag="article"))


def test_ids_are_unique_and_links_within_the_page_lead_somewhere(full: SideBySide) -> None:
    """Ids may differ only in characters that an anchor cannot contain."""
    odd = of(run(requirements=[samples.requirement(name, "x") for name in ("R 1", "R/1", "r-1", "S", "-title")]))
    for page in (Page(render_side_by_side(full)), Page(render_side_by_side(odd))):
        ids = list(page.attributes("id"))
        assert len(ids) == len(set(ids))
        assert {link[1:] for link in page.attributes("href") if link.startswith("#")} <= set(ids)
        assert page.open == []


def test_hostile_text_is_text() -> None:
    """Hostile text in any field makes no element, handler or odd link."""
    runs = [samples.poisoned(samples.HOSTILE + more) for more in (samples.SURROGATE, " | b\n# head")]
    shown = engines([source(runs[0], "", samples.HOSTILE), source(msgspec.structs.replace(runs[1], selftest=[]))])
    page = Page(render_side_by_side(shown))
    assert page.open == []
    assert render_side_by_side(shown) == visible(render_side_by_side(shown))
    tags = [tag for tag, _ in page.elements]
    assert not {"img", "iframe", "base", "link", "svg"} & set(tags)
    assert tags.count("script") == 1
    assert not [name for _, at in page.elements for name in at if name.startswith("on") or name in ("style", "src")]
    assert not [link for link in page.attributes("href") if not link.startswith(("#", "x/index.html"))]
    assert "⟨U+202E⟩gnp.exe" in page.text
    text = side_by_side_markdown(shown)
    assert "<" not in text
    assert "&lt;script&gt;" in text
    assert visible(text) == text
    assert not re.search(r"^# head", text, flags=re.MULTILINE)


def test_the_page_loads_nothing_and_links_to_what_it_is_of(full: SideBySide) -> None:
    """The page is one file that can be sent by mail."""
    source_text = render_side_by_side(full)
    assert "url(" not in source_text
    assert "@import" not in source_text
    links = {link.partition("#")[0] for link in Page(source_text).attributes("href")} - {""}
    assert links == {"vllm/index.html", "sglang/index.html", "none/index.html"}


def test_the_same_runs_give_the_same_bytes(full: SideBySide) -> None:
    """This includes runs that are read back from files with sorted keys."""
    stored = [
        source(msgspec.json.decode(encode(one.results), type=Results), one.link, one.name) for one in everything()
    ]
    assert render_side_by_side(engines(stored)) == render_side_by_side(full)
    assert side_by_side_markdown(engines(stored)) == side_by_side_markdown(full)


def test_every_verdict_has_its_meaning_on_the_page(full: SideBySide) -> None:
    """The page has the same legend as the report of a run."""
    text = Page(render_side_by_side(full)).text
    assert all(meaning in text for meaning in VERDICT_MEANING.values())


def test_runs_without_a_verdict_that_counts_say_so() -> None:
    """No empty table is drawn."""
    shown = of(run(requirements=[]))
    assert "No run has a valid verdict." in Page(render_side_by_side(shown)).text
    assert "No run has a valid verdict." in side_by_side_markdown(shown)
    assert "data-filter" not in {name for _, at in Page(render_side_by_side(shown)).elements for name in at}


@pytest.mark.parametrize("kind", [ENGINES, TWO_RUNS, RELEASES, REGISTER], ids=lambda kind: kind.title)
def test_a_page_of_no_run_says_so(kind: Kind) -> None:
    """All bundles were refused, or no release could be installed."""
    shown = side_by_side([], kind, Made(headline="Nothing", missing=("1.0: not installed",)))
    text = Page(render_side_by_side(shown)).text
    assert "There is no run." in text
    assert "No run has a valid verdict." in text
    assert "1.0: not installed" in text
    assert "No run has a valid verdict." in side_by_side_markdown(shown)


def test_many_runs_of_many_requirements_stay_small() -> None:
    """The page has ten engines and forty requirements, and the printed page reports what has no room."""
    many = [samples.requirement(f"R-{i}", "x", *(samples.cell(f"c{j}") for j in range(3))) for i in range(40)]
    source_text = render_side_by_side(of(*(run(f"engine {place}", requirements=many) for place in range(10))))
    assert len(source_text.encode()) < 2_000_000
    assert "10 columns do not fit on a printed page" in Page(source_text).text


# Markdown


def test_the_markdown_has_engines_likeness_requirements_and_reasons(full: SideBySide) -> None:
    """The sections are in that order, and all rows of a table have the same number of fields."""
    text = side_by_side_markdown(full)
    assert re.findall("^### (.*)$", text, flags=re.MULTILINE) == ["What can be compared", "Requirements", "Why"]
    assert "| LORA-2 two | not in this run | ✓ CONFORMS, 40 examples | the run is invalid | not in this run |" in text
    for table in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1


def test_the_markdown_lists_the_worst_reason_first_and_equal_ones_once() -> None:
    """A list that is cut must not lose a violation."""
    lacks = [
        one_requirement(Verdict.UNSUPPORTED),
        msgspec.structs.replace(one_requirement(Verdict.VIOLATED), id="SALT-1"),
    ]
    text = side_by_side_markdown(of(run(requirements=lacks), run("SGLang", "0.5", requirements=lacks[:1])))
    assert re.findall("^- [*].*$", text, flags=re.MULTILINE) == [
        "- **SALT-1** ✕ VIOLATED vLLM 0.32.0: so it is.",
        f"- **LORA-1** – UNSUPPORTED vLLM 0.32.0 and SGLang 0.5: so it is. What would help: {ANOTHER}.",
    ]


def test_the_markdown_is_bounded() -> None:
    """CI systems refuse a summary that is too long."""
    many = [samples.requirement(f"R-{i}", "x", samples.cell(verdict=Verdict.ERROR)) for i in range(300)]
    text = side_by_side_markdown(of(run(requirements=many)))
    assert "And 250 more requirements." in text
    assert "- and 250 more" in text
    assert len(text.splitlines()) < 150
