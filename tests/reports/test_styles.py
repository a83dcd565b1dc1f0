"""Style sheets are written separately and used in one document, so none may change another's part."""

from __future__ import annotations

import itertools
import re

import pytest
from support.paths import ROOT

PARTS = ("matrix.css", "case.css", "run.css", "reach.css", "side_by_side.css")
PLACES = {path.name: path for path in (ROOT / "reports").rglob("*.css")}
CLASS = re.compile(r"\.([A-Za-z][\w-]*)")


def selectors(sheet: str) -> list[str]:
    """Return every selector of a sheet, including those in media queries."""
    source = re.sub(r"/\*.*?\*/|@media[^{]*\{", "", PLACES[sheet].read_text(encoding="utf-8"), flags=re.S)
    found = re.findall(r"([^{}]+)\{[^{}]*\}", source)
    return [one.strip() for group in found for one in group.split(",")]


@pytest.mark.parametrize(
    ("sheet", "other"), [*itertools.permutations(PARTS, 2), *((part, "style.css") for part in PARTS)]
)
def test_a_bare_class_of_one_part_is_no_class_of_another(sheet: str, other: str) -> None:
    """`.key` of one sheet once changed the layout of another sheet's `.key`."""
    bare = {found[1] for one in selectors(sheet) if (found := re.fullmatch(r"\.([A-Za-z][\w-]*)(:[\w-]+)*", one))}
    assert bare
    elsewhere = {name for one in selectors(other) for name in CLASS.findall(one)}
    assert bare & elsewhere == set()
