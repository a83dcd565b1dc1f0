"""Examples are counted by the states that they reached, over the run and by requirement."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from support.run_events import FINISHED, SOUND, STARTED, announced, concluded

from coldproof.harness.judgement.reach.states import families
from coldproof.harness.schema.results import Results
from coldproof.harness.schema.verdict import Verdict
from coldproof.reports.assemble.assemble import assemble, read_events
from coldproof.reports.assemble.reach import ReachTotals, reach_summary, totals

SMALL = {
    "id": "reset",
    "title": "Reset",
    "row_is": "others",
    "column_is": "the reset",
    "rows": {"idle": "none", "busy": "run"},
    "columns": {"done": "is done", "refused": "is refused"},
    "absent": {"idle/refused": "nothing holds blocks"},
    "needs": "",
}
HIDDEN = {**SMALL, "id": "chunk", "absent": {}, "needs": "steps"}


def example(requirement: str, *cells: str, seen: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return an example that reached these cells, some of them several times."""
    return {
        "event": "example",
        "requirement": requirement,
        "cell": "default",
        "history": {"outcomes": []},
        "evidence": {},
        "findings": [],
        "weight_pairs": [],
        "reach": dict.fromkeys(cells, 7),
        "seen": seen,
    }


def results(tmp_path: Path, *examples: dict[str, Any], families: Any = (SMALL, HIDDEN)) -> Results:
    """Return the results of a run with these examples, read from its file."""
    ids = ("CTRL-1", "REUSE-1")
    verdicts = (concluded(one, Verdict.CONFORMS) for one in ids)
    events = [STARTED, {"event": "states", "families": families}, SOUND, *map(announced, ids), *examples, *verdicts]
    path = tmp_path / "events.ndjson"
    lines = [msgspec.json.encode({"event": event["event"], "at": 1.0, **event}) for event in (*events, FINISHED)]
    path.write_bytes(b"\n".join(lines))
    return assemble(read_events(path))


def test_examples_are_counted_once_per_state(tmp_path: Path) -> None:
    """The counts are over the run, and for each requirement over its own examples."""
    found = results(
        tmp_path,
        example("CTRL-1", "reset/idle/done", "reset/busy/refused"),
        example("CTRL-1", "reset/idle/done"),
        example("REUSE-1", "reset/idle/done"),
    )
    table, hidden = found.reach
    assert table.examples == [[3, None], [0, 1]]
    assert [heading.key for heading in table.rows] == ["idle", "busy"]
    assert {one.id: one.reach for one in found.requirements} == {
        "CTRL-1": {"reset/busy/refused": 1, "reset/idle/done": 2},
        "REUSE-1": {"reset/idle/done": 1},
    }
    assert (table.observable, hidden.observable) == (True, False)
    assert totals(found.reach) == ReachTotals(cells=3, reached=2, once=1, unseen=4)
    assert reach_summary(found.reach) == (
        "engine states reached: 2 of 3, 1 by one example only, 1 never; 4 states cannot be seen on this engine"
    )


def test_a_table_is_observable_if_one_example_could_show_it(tmp_path: Path) -> None:
    """Only some cells of an engine have a second tier."""
    found = results(tmp_path, example("CTRL-1"), example("CTRL-1", seen=("steps",)))
    assert [table.observable for table in found.reach] == [True, True]


def test_a_run_that_announced_no_model_has_no_tables(tmp_path: Path) -> None:
    """Events of an older version can still be read."""
    assert results(tmp_path, example("CTRL-1"), families=()).reach == []
    assert reach_summary([]) == ""


def test_the_model_survives_the_events(tmp_path: Path) -> None:
    """Every cell of the model is in the tables, in the order of the model."""
    tables = results(tmp_path, families=families()).reach
    cells = {
        f"{table.id}/{row.key}/{column.key}"
        for table in tables
        for row, counts in zip(table.rows, table.examples, strict=True)
        for column, count in zip(table.columns, counts, strict=True)
        if count is not None
    }
    assert cells == {cell for family in families() for cell in family.cells()}
    assert [table.id for table in tables] == [family.id for family in families()]
