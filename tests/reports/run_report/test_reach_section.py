"""The report shows which states were reached often, once or never, and which cannot occur."""

from __future__ import annotations

import msgspec
import pytest
from support import report_samples as samples
from support.page import Page

from coldproof.harness.schema.reach import Heading, StateTable
from coldproof.harness.schema.results import Results
from coldproof.reports.format.text import number
from coldproof.reports.run_report.run_report import render_html
from coldproof.reports.views.reach import RequirementReach, by_requirement, level

TABLE = StateTable(
    id="reset",
    title="Reset <of the cache>",
    row_is="others",
    column_is="the reset",
    rows=[Heading("idle", "none"), Heading("busy", "run")],
    columns=[Heading("done", "is done"), Heading("refused", "is refused")],
    examples=[[1234, None], [1, 0]],
    absent={"idle/refused": "nothing holds blocks"},
)
HIDDEN = msgspec.structs.replace(TABLE, id="chunk", title="Chunks", needs="recorded steps", observable=False)


def reaching(*tables: StateTable, **cells: dict[str, int]) -> Results:
    """Return results with these tables, and with cells by the position of the requirement."""
    plain = samples.results()
    changed = [
        msgspec.structs.replace(one, reach=cells.get(f"r{number}", {})) for number, one in enumerate(plain.requirements)
    ]
    return msgspec.structs.replace(plain, requirements=changed, reach=list(tables))


def test_each_field_has_its_count_and_its_class() -> None:
    """A state that cannot occur has its reason for all readers."""
    page = render_html(reaching(TABLE, HIDDEN))
    Page(page)
    assert f'<td class="reach-often">{number(1234)}</td>' in page
    assert '<td class="reach-once">1</td>' in page
    assert '<td class="reach-never">0</td>' in page
    assert page.count("nothing holds blocks") == 2
    assert "Reset &lt;of the cache&gt;" in page
    assert "Chunks (recorded steps)" in page
    assert 'href="#reach"' in page


def test_a_run_without_tables_has_no_section() -> None:
    """Results of older versions have no tables."""
    page = render_html(samples.results())
    assert 'id="reach"' not in page
    assert 'href="#reach"' not in page


@pytest.mark.parametrize(
    ("count", "name"), [(None, "absent"), (0, "never"), (1, "once"), (2, "few"), (9, "few"), (10, "often")]
)
def test_counts_have_a_level(count: int | None, name: str) -> None:
    """A state that was reached once may have been reached by chance."""
    assert level(count) == name


def test_requirements_are_compared_by_states_that_only_they_reach() -> None:
    """Requirements that reached most come first."""
    found = reaching(TABLE, r0={"a": 3}, r1={"a": 1, "b": 2})
    rows = by_requirement(found)
    assert [(row.reached, row.alone) for row in rows] == [(2, 1), (1, 0)]
    assert rows[0] == RequirementReach(found.requirements[1].id, found.requirements[1].examples, 2, 1)
    assert "States reached by requirement (2)" in render_html(found)
