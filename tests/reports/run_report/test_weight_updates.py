"""The table of weight updates: its data, its verdicts and how it is shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from playwright.sync_api import Browser
from support import report_samples as samples
from support.browsing import a_browser, assert_it_fits_every_screen, pages_of, serious_violations
from support.page import Page
from support.run_events import FINISHED, SOUND, STARTED, announced, concluded

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.weights import WeightPolicy, WeightRoute
from coldproof.harness.schema.results import LayerResult, Results
from coldproof.harness.schema.verdict import Verdict
from coldproof.harness.schema.weight_updates import (
    INVALIDATION_NEEDS,
    PROMISED,
    ROUTE_NEEDS,
    Invalidation,
    UpdateCount,
)
from coldproof.reports.assemble.assemble import assemble, read_events
from coldproof.reports.exports.markdown_summary import summary_markdown
from coldproof.reports.run_report.run_report import render_html
from coldproof.reports.views.weight_updates import PairField, update_matrix

PATH, SAME_PATH = WeightRoute.PATH.value, WeightRoute.SAME_PATH.value
PROMISE = "tested promise: on reset: call /reset_prefix_cache (https://example.org)"
TITLE = "Updates of the weights"


def count(by: Invalidation = Invalidation.RESET, requests: int = 40, **more: Any) -> UpdateCount:
    """Return the counts of one pair."""
    facts: dict[str, Any] = {"requirement": "WEIGHT-1", "cell": "default", "route": PATH, "policy": "on reset"}
    return UpdateCount(invalidation=by, requests=requests, **{**facts, **more})


def run(*counts: UpdateCount, verdict: Verdict = Verdict.CONFORMS, **capabilities: bool) -> Results:
    """Return a run of WEIGHT-1 with these counts and this verdict. `capabilities`: by the names of `Capability`."""
    result = samples.results()
    assert result.engine is not None
    found = {Capability[name].value: {"present": there, "evidence": "probed"} for name, there in capabilities.items()}
    engine = msgspec.structs.replace(result.engine, capabilities=found, weight_promise=PROMISE)
    requirement = samples.requirement("WEIGHT-1", "new weights", samples.cell("default", verdict))
    return msgspec.structs.replace(result, engine=engine, requirements=[requirement], weight_updates=list(counts))


def fields(results: Results) -> dict[tuple[str, str, str], PairField]:
    """Return the fields of the table by layer, calls and route."""
    matrix = update_matrix(results)
    assert matrix is not None
    return {
        (group.layer, row.name, route): field
        for group in matrix.groups
        for row in group.rows
        for route, field in zip(matrix.routes, row.fields, strict=True)
    }


def reset_field(results: Results) -> PairField:
    """Return the field of a reset after an update from another path."""
    return fields(results)["", Invalidation.RESET, PATH]


def test_the_names_are_those_of_the_harness() -> None:
    """Reports do not import the harness, so a new route or policy needs an entry here."""
    known = {capability.value for capability in Capability}
    assert {*INVALIDATION_NEEDS.values(), *ROUTE_NEEDS.values()} <= known
    assert set(ROUTE_NEEDS) == {route.value for route in WeightRoute}
    assert set(PROMISED) == {policy.value for policy in WeightPolicy}


@pytest.mark.parametrize(
    ("counts", "verdict", "shown"),
    [
        ([count()], Verdict.CONFORMS, (Verdict.CONFORMS, "40 requests, none wrong")),
        ([count(requests=4)], Verdict.CONFORMS, (Verdict.NOT_EXERCISED, "only 4 requests")),
        ([count(wrong=3)], Verdict.VIOLATED, (Verdict.VIOLATED, "3 of 40 wrong")),
        ([count(wrong=3)], Verdict.KNOWN_ISSUE, (Verdict.KNOWN_ISSUE, "3 of 40 wrong")),
        ([count(wrong=3)], Verdict.NOT_EXERCISED, (Verdict.INCONCLUSIVE, "3 of 40 wrong")),
        ([count()], Verdict.INCONCLUSIVE, (Verdict.INCONCLUSIVE, "40 requests, none wrong")),
        ([count()], Verdict.ERROR, (Verdict.ERROR, "40 requests, none wrong")),
        ([count(), count(Invalidation.SALT, wrong=1)], Verdict.VIOLATED, (Verdict.CONFORMS, "40 requests, none wrong")),
        ([count(), count(Invalidation.SALT, wrong=1)], Verdict.ERROR, (Verdict.CONFORMS, "40 requests, none wrong")),
        ([count(Invalidation.SALT)], Verdict.CONFORMS, (Verdict.NOT_EXERCISED, "no request")),
    ],
    ids=["right", "few", "wrong", "waived", "interrupted", "noise", "error", "another pair", "its error", "none"],
)
def test_a_pair_is_right_only_if_it_was_exercised_and_nothing_in_its_cell_is_unsure(
    counts: list[UpdateCount], verdict: Verdict, shown: tuple[Verdict, str]
) -> None:
    """Wrong requests have the verdict of their requirement and do not count for another pair."""
    field = reset_field(run(*counts, verdict=verdict))
    assert (field.verdict, field.words) == shown
    assert field.wrong is ("wrong" in shown[1] and "none" not in shown[1])


def test_a_pair_that_the_engine_does_not_have_says_what_it_lacks() -> None:
    """The route or the invalidation may be missing. A pair that is not known to be absent was not exercised."""
    seen = fields(run(count(), count(route=SAME_PATH, requests=0), PAUSE_WAIT=False, WEIGHTS_SAME_PATH=False))
    assert seen["", Invalidation.WAIT_AROUND, PATH] == PairField(
        Verdict.UNSUPPORTED, f"{Capability.PAUSE_WAIT.value}: probed"
    )
    assert seen["", Invalidation.RESET, SAME_PATH].verdict is Verdict.UNSUPPORTED
    assert seen["", Invalidation.KEEP_AROUND, PATH].verdict is Verdict.NOT_EXERCISED


def test_a_route_that_the_engine_has_is_a_column_without_any_request() -> None:
    """A route that was not tried must differ from one that the engine lacks."""
    seen = fields(run(count(), WEIGHTS_SAME_PATH=True, WEIGHTS_IN_PLACE=False))
    assert {route for _, _, route in seen} == {PATH, SAME_PATH}
    assert seen["", Invalidation.RESET, SAME_PATH] == PairField(Verdict.NOT_EXERCISED, "no request")


def test_the_rows_follow_the_promise() -> None:
    """A run that tests the salt makes no statement about resets."""
    names = [
        {calls for _, calls, _ in fields(run(count(by, policy=policy)))}
        for by, policy in ((Invalidation.UPDATE, "invalidates"), (Invalidation.SALT, "version in the salt"))
    ]
    assert names == [{Invalidation.UPDATE.value}, {Invalidation.SALT.value}]
    assert Invalidation.SLEEP_AFTER in {calls for _, calls, _ in fields(run(count()))}


def test_without_a_promise_there_is_no_verdict_but_a_count_of_hits() -> None:
    """The count shows what a training loop without the invalidation would see."""
    key = ("", Invalidation.NOTHING, PATH)
    assert fields(run(count(Invalidation.NOTHING, 6, hits=5)))[key] == PairField(None, "5 of 6 hit old KV")
    unknown = fields(run(count(Invalidation.NOTHING, 6, hits=5), count(Invalidation.NOTHING, 1)))[key]
    assert unknown == PairField(None, "7 requests; hits are not reported")


def layered() -> Results:
    """Return a run of two layers, one of which has a violated pair."""
    counts = [
        count(layer="server"),
        count(layer="exact", wrong=2),
        count(Invalidation.NOTHING, 3, layer="exact", hits=3),
    ]
    base = run(*counts, count(Invalidation.SALT, layer="server", route=SAME_PATH))
    cells = [samples.cell("default", Verdict.VIOLATED, layer="exact"), samples.cell("default", layer="server")]
    layers = [
        LayerResult(
            layer=name,
            engine=base.engine,
            calibration=None,
            verdicts={},
            examples=1,
            requests=1,
            seconds=1.0,
            engine_idle_share=None,
        )
        for name in ("exact", "server")
    ]
    requirement = samples.requirement("WEIGHT-1", "new weights", *cells)
    return msgspec.structs.replace(base, layers=layers, requirements=[requirement])


def test_layers_are_counted_apart() -> None:
    """A wrong answer in one layer does not count for the other. Layers have the usual order."""
    seen = fields(layered())
    assert list(dict.fromkeys(layer for layer, _, _ in seen)) == ["exact", "server"]
    assert seen["exact", Invalidation.RESET, PATH].verdict is Verdict.VIOLATED
    assert seen["server", Invalidation.RESET, PATH].verdict is Verdict.CONFORMS


def test_a_layer_in_which_no_request_counts_is_shown() -> None:
    """The requirement ran in that layer. A layer without the requirement or the capability is not shown."""
    shown = layered()
    only = [one for one in shown.weight_updates if one.layer == "exact"]
    layers = {layer for layer, _, _ in fields(msgspec.structs.replace(shown, weight_updates=only))}
    assert layers == {"exact", "server"}
    (requirement,) = shown.requirements
    exact, server = requirement.cells
    absent = msgspec.structs.replace(server, verdict=Verdict.UNSUPPORTED)
    for cells in ([exact], [exact, absent]):
        changed = msgspec.structs.replace(requirement, cells=cells)
        run_there = msgspec.structs.replace(shown, weight_updates=only, requirements=[changed])
        assert {layer for layer, _, _ in fields(run_there)} == {"exact"}


def test_the_page_and_the_summary_show_the_table() -> None:
    """The table has the policy, links to the requirement, and marks for wrong requests. Other runs have no table."""
    source, summary = render_html(layered()), summary_markdown(layered())
    page = Page(source)
    assert "Tested promise: on reset: call /reset_prefix_cache" in page.text
    assert source.count('<span class="line wrong">2 of 40 wrong</span>') == 1
    assert "3 of 3 hit old KV" in page.text
    assert {"#weight-updates", "#requirement-weight-1"} <= set(page.attributes("href", tag="a"))
    assert "**✕ VIOLATED: 2 of 40 wrong**" in summary
    assert "| update, nothing else | no promise: 3 of 3 hit old KV | no promise: no request |" in summary
    for text in (render_html(samples.results()), summary_markdown(samples.results())):
        assert TITLE not in text


def test_the_data_is_summed_over_the_examples_of_a_stored_run(tmp_path: Path) -> None:
    """Counts are added by requirement, cell, layer and pair. Most examples have none."""
    pair = {"route": PATH, "invalidation": "update, cache reset", "policy": "on reset", "requests": 2, "wrong": 1}
    nothing = {**pair, "invalidation": "update, nothing else", "wrong": 0}
    example: dict[str, Any] = {"event": "example", "requirement": "WEIGHT-1", "cell": "default", "history": {}}
    example |= {"findings": [], "evidence": {}, "reach": {}, "seen": [], "weight_pairs": []}
    events = [
        STARTED,
        SOUND,
        announced("WEIGHT-1"),
        {**example, "weight_pairs": [pair, {**nothing, "hits": 2}]},
        {**example, "weight_pairs": [{**pair, "wrong": 0}, {**nothing, "hits": 1}]},
        {**example, "weight_pairs": [{**nothing, "route": SAME_PATH, "hits": None}]},
        {**example, "cell": "tight", "weight_pairs": [pair]},
        {**example, "layer": "server", "weight_pairs": [pair]},
        example,
        concluded("WEIGHT-1", Verdict.CONFORMS),
        FINISHED,
    ]
    log = tmp_path / "events.ndjson"
    lines = (json.dumps({"event": e["event"], "at": 1.0, **e}, separators=(",", ":")) for e in events)
    log.write_text("\n".join(lines) + "\n")
    counted = assemble(read_events(log)).weight_updates
    seen = [(c.cell, c.layer, c.route, c.invalidation, c.requests, c.wrong, c.hits) for c in counted]
    assert seen == [
        ("default", "", PATH, Invalidation.RESET, 4, 1, None),
        ("default", "", PATH, Invalidation.NOTHING, 4, 0, 3),
        ("default", "", SAME_PATH, Invalidation.NOTHING, 2, 0, None),
        ("tight", "", PATH, Invalidation.RESET, 2, 1, None),
        ("default", "server", PATH, Invalidation.RESET, 2, 1, None),
    ]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Yield one browser for the tests of this file."""
    with a_browser() as found:
        yield found


@pytest.mark.nightly
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_table_is_readable_in_a_browser(browser: Browser, tmp_path: Path, scheme: str) -> None:
    """axe-core finds no serious violation, and the table fits every screen."""
    with pages_of(browser, tmp_path) as open_page:
        page = open_page(layered(), color_scheme=scheme)
        assert page.locator("#weight-updates .v-violated .wrong").is_visible()
        assert serious_violations(page) == []
        assert_it_fits_every_screen(page, tmp_path / "page.png")
