"""Imports run down one table of rooms, never up, and always by the name `coldproof` (docs/architecture.md)."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.paths import ROOT

FILES = "reports/files"
DRAWS = ("harness/schema", "reports/format", "reports/assemble", "reports/views", "reports/page")
REPORTS: dict[str, tuple[str, ...]] = {
    "reports/files": (),
    **{room: DRAWS[:place] for place, room in enumerate(DRAWS)},
    "reports/findings": DRAWS,
    "reports/side_by_side": DRAWS,
    "reports/kill_matrix": DRAWS,
    "reports/noise_curve": DRAWS,
    "reports/run_report": DRAWS,
}
REPORTS["reports/exports"] = tuple(REPORTS)
# What a room may import beside itself, from the lowest room up. A room may import only what stands above its own line.
ADAPTERS = ("adapters/protocol", "adapters/common")
ENGINE = (*ADAPTERS, "adapters/spec", "adapters/server")
HARNESS_ADAPTERS = ("adapters/registry", *ENGINE)
DATA = ("harness/history", "harness/workload")
OPTIONS = ("harness/options", "harness/option_table", "harness/option_words")
DRAWN = ("harness/schema", "reports/format", "reports/assemble", "reports/exports", FILES)
ROOMS: dict[str, tuple[str, ...]] = {
    "adapters/protocol": (),
    **REPORTS,
    "adapters/common": ("adapters/protocol",),
    "harness/event_log": ("adapters/common",),
    "adapters/server": ADAPTERS,
    "adapters/spec": ADAPTERS,
    "harness/feature_files": (),
    "harness/option_words": (),
    "harness/workload": ("adapters/protocol", "harness/feature_files"),
    "harness/history": ("harness/workload", "adapters/protocol"),
    "adapters/registry": ("adapters/spec", "adapters/protocol"),
    "harness/options": ("adapters/registry", "adapters/spec", "harness/schema"),
    "harness/option_table": ("harness/option_words", "adapters/registry", "adapters/spec", "reports/assemble"),
    "harness/judgement": (*DATA, "harness/options", "harness/feature_files", "adapters/protocol", "harness/schema"),
    "harness/execution": (
        *DATA,
        "harness/judgement",
        "harness/event_log",
        "harness/feature_files",
        "harness/options",
        *HARNESS_ADAPTERS,
        "harness/schema",
        FILES,
    ),
    "harness/case": (
        *DATA,
        "harness/judgement",
        "harness/feature_files",
        *OPTIONS,
        *HARNESS_ADAPTERS,
        *DRAWN,
    ),
    "harness/selection": ("harness/case", "harness/judgement", *OPTIONS, *HARNESS_ADAPTERS, *DRAWN),
    "harness/proof": (
        *(*DATA, "harness/execution", "harness/case", "harness/judgement", "harness/options"),
        *HARNESS_ADAPTERS,
        *DRAWN[:2],
    ),
    "harness/release": (
        *("harness/selection", "harness/case", "harness/judgement", *DATA, "harness/event_log", "harness/options"),
        *HARNESS_ADAPTERS,
        *DRAWN,
    ),
    "harness/session": (
        *("harness/release", "harness/selection", "harness/proof", "harness/execution", "harness/case"),
        *("harness/judgement", "harness/workload", "harness/event_log", *OPTIONS),
        *HARNESS_ADAPTERS,
        *DRAWN,
    ),
    "harness/fleet": (
        "harness/session",
        "harness/release",
        "harness/selection",
        "harness/case",
        *OPTIONS,
        *DRAWN,
    ),
    "harness/power": (
        *("harness/session", "harness/release", "harness/selection", "harness/execution", "harness/judgement", *DATA),
        *(
            "harness/event_log",
            *OPTIONS,
            "adapters/registry",
            "adapters/spec",
            "adapters/common",
            *DRAWN[:3],
            FILES,
        ),
    ),
    "harness/engine_releases": ("harness/case", *OPTIONS, "adapters/spec", *DRAWN[:1], FILES),
    # A file of a feature has narrower rules: see FEATURE_FILES.
    "harness/features": (*DATA, "harness/judgement", "harness/execution", "harness/case", "adapters/protocol"),
    "suites": ("harness/session", "harness/features", "harness/judgement", *DATA, "adapters/protocol"),
}
# The room to which a file of a feature adds, by the last word of its name: it may import that room and what that room
# may import. A file may import files of its own feature, and of those in its USES, that stand no higher.
FEATURE_FILES = {
    "steps": "harness/workload",
    "workloads": "harness/workload",
    "facts": "harness/history",
    "evidence": "harness/judgement",
    "checks": "harness/judgement",
    "bounds": "harness/judgement",
    "states": "harness/judgement",
    "perform": "harness/execution",
    "script": "harness/case",
    "circumstances": "harness/case",
}
# One arrow goes into an engine's folder: both sides must compute the same digests.
DIGESTS = ("harness/execution/oracles/closed_form.py", "adapters/vllm/fingerprint/digest")


def feature_file(path: str) -> tuple[str, str]:
    """Return the feature of a file or module `harness/features/NAME/FILE`, and the room to which the file adds."""
    _, _, feature, file = path.removesuffix(".py").split("/")[:4]
    return feature, FEATURE_FILES[file.split("_")[-1]]


def uses(feature: str) -> tuple[str, ...]:
    """Return the features that a feature names in its USES."""
    source = (ROOT / "harness/features" / feature / "__init__.py").read_text(encoding="utf-8")
    named = [node.value for node in ast.parse(source).body if isinstance(node, ast.Assign)]
    return tuple(ast.literal_eval(named[0])) if named else ()


def forbidden_in_feature(path: str, target: str) -> bool:
    """Return whether a file of a feature must not import a module of ours."""
    feature, room = feature_file(path)
    if room_of(target) != "harness/features":
        return room_of(target) not in (room, *ROOMS[room])
    other, of_other = feature_file(target)
    return other not in (feature, *uses(feature)) or of_other not in (room, *ROOMS[room])


def room_of(path: str) -> str:
    """Return the room of a file, or of a module written as a path: `harness/case`, `adapters/vllm`, `suites`."""
    parts = path.removesuffix(".py").split("/")
    return parts[0] if parts[0] in ("suites", "tests") else "/".join(parts[:2])


def allowed(room: str) -> tuple[str, ...] | None:
    """Return the rooms that a room may import beside itself; None for every room."""
    if room in ("harness/cli", "tests"):
        return None
    if room.startswith("adapters/") and room not in ROOMS:
        return ENGINE  # an engine's folder
    return ROOMS[room]


def imported(source: str) -> Iterator[str]:
    """Yield every module that a file imports, wherever in the file it does so, and names of ours in `import_module`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            # `from coldproof.harness import schema` imports a room, and so does a name out of one of its modules.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            yield from (
                one.value for one in node.args[:1] if isinstance(one, ast.Constant) and isinstance(one.value, str)
            )


def forbidden(source: str, path: str) -> list[str]:
    """Return the modules of ours that this file must not import, or not under this name."""
    own, found = room_of(path), []
    may = allowed(own)
    for name in imported(source):
        first, *rest = name.split(".")
        if first in ("adapters", "harness", "reports", "suites"):
            found.append(name)
        if first != "coldproof" or len(rest) < 2 or rest[0] not in ("adapters", "harness", "reports", "suites"):
            continue
        target = "/".join(rest)
        if (path, target.rsplit("/", 1)[0]) == DIGESTS:
            continue
        room = room_of(target)
        if own == "harness/features":
            found += [name] if forbidden_in_feature(path, target) else []
        elif room != own and may is not None and room not in may:
            found.append(name)
    return found


FILES = [
    path.relative_to(ROOT).as_posix()
    for room in ("adapters", "harness", "reports", "suites")
    for path in sorted((ROOT / room).rglob("*.py"))
    if path.parent != ROOT / room or path.name != "__init__.py"
]


def test_no_file_imports_up_the_table() -> None:
    """This covers every file of every room, except for tests."""
    assert len(FILES) > 300
    found = {name: bad for name in FILES if (bad := forbidden((ROOT / name).read_text(encoding="utf-8"), name))}
    assert found == {}


def test_the_table_has_no_circle() -> None:
    """A room imports only rooms that stand before it in the table."""
    order = list(ROOMS)
    assert [(room, other) for room in order for other in ROOMS[room] if order.index(other) >= order.index(room)] == []


def test_every_room_of_the_tree_is_in_the_table() -> None:
    """A new folder or file at a room's level must be given its place."""
    there = {room_of(name) for name in FILES if not name.endswith("__init__.py") or name.count("/") > 1}
    engines = {f"adapters/{path.parent.name}" for path in (ROOT / "adapters").glob("*/spec.py")}
    assert there - engines - {"harness/cli"} == set(ROOMS)


def test_features_use_one_another_without_a_circle() -> None:
    """What a feature names in its USES is a feature, is imported, and does not use that feature in turn."""
    folders = {path.parent.name: path.parent for path in (ROOT / "harness/features").glob("*/__init__.py")}
    imported_by = {
        name: {
            module.split(".")[3]
            for file in folder.glob("*.py")
            for module in imported(file.read_text(encoding="utf-8"))
            if module.startswith("coldproof.harness.features.")
        }
        - {name}
        for name, folder in folders.items()
    }
    assert imported_by == {name: set(uses(name)) for name in folders}
    assert list(graphlib.TopologicalSorter(imported_by).static_order())


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("adapters/vllm/server.py", "from coldproof.harness.workload.steps import Prompt"),
        ("adapters/vllm/server.py", "from coldproof.adapters.llamacpp.engine import spawn"),
        ("adapters/protocol/engine.py", "import coldproof.harness.schema"),
        ("harness/case/case.py", "from coldproof.harness.session.budget import Budget"),
        ("harness/case/case.py", "import coldproof.suites.test_ground"),
        ("harness/judgement/judge.py", "from coldproof.reports.run_report.run_report import render_html"),
        ("harness/history/records.py", "def late():\n    from coldproof.harness.judgement.judge import judge"),
        ("harness/judgement/oracle.py", "from coldproof.adapters.vllm.fingerprint.digest import mix"),
        ("reports/views/overview.py", "from coldproof.harness.history.records import History"),
        ("reports/views/overview.py", "import importlib\nimportlib.import_module('coldproof.harness.cli.merge')"),
        ("harness/schema/case.py", "if TYPE_CHECKING:\n    from coldproof.adapters.protocol.requests import Token"),
        ("suites/test_ground.py", "from coldproof.harness.schema.verdict import Verdict"),
        ("suites/test_ground.py", "from harness.judgement.requirement import requirement"),
        ("harness/cli/run.py", "import adapters"),
        ("harness/judgement/judge.py", "from coldproof.harness.features.endpoints.facts import usual_endpoint"),
        ("harness/session/trials.py", "from coldproof.harness.features.endpoints import checks"),
        ("harness/features/endpoints/checks.py", "from coldproof.harness.execution.observer import Observer"),
        (
            "harness/features/endpoints/facts.py",
            "from coldproof.harness.features.endpoints.checks import check_endpoints",
        ),
        ("harness/features/endpoints/checks.py", "from coldproof.harness.features.images.evidence import Images"),
    ],
)
def test_a_wrong_import_is_detected(path: str, source: str) -> None:
    """This includes an import inside a function, for types only, by a string, or without the name `coldproof`."""
    assert len(forbidden(source, path)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("suites/test_ground.py", "from coldproof.harness.session.system_under_test import SystemUnderTest"),
        ("harness/judgement/judge.py", "from coldproof.harness.schema.verdict import Verdict\nimport json, msgspec"),
        ("adapters/toy/spec.py", "from coldproof.adapters.toy.engine import start"),
        (
            "harness/features/endpoints/checks.py",
            "from coldproof.harness.features.endpoints.facts import usual_endpoint",
        ),
        ("harness/features/endpoints/workloads.py", "from coldproof.harness.features.salts.workloads import SALTS"),
        ("harness/execution/oracles/closed_form.py", "from coldproof.adapters.vllm.fingerprint.digest import mix"),
        ("harness/cli/run.py", "from coldproof.harness.session.plugin import PLUGIN\nimport adapters_of_somebody_else"),
    ],
)
def test_an_allowed_import_is_accepted(path: str, source: str) -> None:
    """Packages of others whose names begin like ours are accepted as well."""
    assert forbidden(source, path) == []


def test_tests_import_helpers_in_one_way() -> None:
    """Helpers are in tests/support and are imported as `support.NAME`."""
    wrong = {
        path.relative_to(ROOT).as_posix(): name
        for path in Path(ROOT / "tests").rglob("*.py")
        for name in imported(path.read_text(encoding="utf-8"))
        if name.split(".")[0] in ("tests", "adapters", "harness", "reports", "suites")
    }
    assert wrong == {}
