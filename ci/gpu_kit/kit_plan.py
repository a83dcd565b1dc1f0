"""The plan of a kit: what is packed, and the timed steps that are run on the target. A plan with a mistake is refused
before anything is packed or started.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar, cast

MOST_GROUPS = 7  # files that come back, with kit.json beside them
BUDGET_SHARE = 0.55  # of a step's time for Coldproof's --budget: a run may take 1.5 times its budget, and a start


class PlanError(ValueError):
    """The plan cannot be used, with the reason."""


@dataclass(frozen=True, kw_only=True)
class Pack:
    """What is packed. `requires`: requirement lines. `skip`: distributions that are never brought.

    `only`: bring `requires` without what they require. `models`: "tiny", or names of trained models. `files`: carried
    as they are, relative to the checkout.
    """

    requires: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    only: bool = False
    models: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Step:
    """One command with a deadline. Steps of one lane run one behind the other, and lanes run in parallel.

    `expect`: the exit codes that count as done. `keep`: patterns of further files to bring back. `after`: steps that
    must have ended. `devices`: on which the step is run; empty: all.
    """

    name: str
    run: tuple[str, ...]
    seconds: float
    group: str = "results"
    lane: str = "main"
    expect: tuple[int, ...] = (0,)
    devices: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A whole plan. `budget`: seconds of a run. `drop`: distribution -> patterns of files left out of its wheel.

    `gpu`: distribution -> the only kind of GPU for which its libraries keep device code, such as 90 for Hopper.
    """

    about: str = ""
    budget: float
    pack: Pack = Pack()
    drop: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    gpu: Mapping[str, int] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()

    def chosen(self, device: str, only: tuple[str, ...]) -> tuple[Step, ...]:
        """Return the steps for a device; with `only`, those of these names. Raises PlanError for an unknown name."""
        if unknown := set(only) - {step.name for step in self.steps}:
            raise PlanError(f"the plan has no step {', '.join(sorted(unknown))}")
        named = [step for step in self.steps if not only or step.name in only]
        return tuple(step for step in named if not step.devices or device in step.devices)

    def stretched(self, factor: float) -> Plan:
        """Return the plan for a machine that is so many times slower."""
        steps = tuple(replace(step, seconds=step.seconds * factor) for step in self.steps)
        return replace(self, budget=self.budget * factor, steps=steps)


def read_plan(path: Path) -> Plan:
    """Return the plan in a TOML file. Raises PlanError."""
    try:
        return plan_of(tomllib.loads(path.read_text()))
    except (OSError, tomllib.TOMLDecodeError) as problem:
        raise PlanError(f"cannot read the plan {path}: {problem}") from problem


def plan_of(table: dict[str, Any]) -> Plan:
    """Return the plan of a parsed file. Raises PlanError."""
    known = {"about", "budget", "pack", "wheels", "env", "step"}
    if unknown := table.keys() - known:
        raise PlanError(f"unknown in a plan: {', '.join(sorted(unknown))}")
    plan = Plan(
        about=table.get("about", ""),
        budget=float(table.get("budget", 0)),
        pack=made(Pack, table.get("pack", {}), "[pack]"),
        drop={normal(name): tuple(one.get("drop", ())) for name, one in table.get("wheels", {}).items()},
        gpu={normal(name): int(one["gpu"]) for name, one in table.get("wheels", {}).items() if "gpu" in one},
        env=dict(table.get("env", {})),
        steps=tuple(made(Step, one, f"step {one.get('name', '?')}") for one in table.get("step", [])),
    )
    check(plan)
    return plan


Made = TypeVar("Made", Pack, Step)


def made(kind: type[Made], table: dict[str, Any], where: str) -> Made:
    """Return a value of a table, with its lists as tuples. Raises PlanError for what it lacks or has too much."""
    if unknown := table.keys() - {one.name for one in fields(kind)}:
        raise PlanError(f"{where}: unknown {', '.join(sorted(unknown))}")
    try:
        values = {name: tuple(value) if isinstance(value, list) else value for name, value in table.items()}
        return kind(**cast(dict[str, Any], values))
    except TypeError as problem:
        raise PlanError(f"{where}: {problem}") from problem


def check(plan: Plan) -> None:
    """Raise PlanError if the plan's steps do not fit together."""
    names = [step.name for step in plan.steps]
    groups = {step.group for step in plan.steps}
    if plan.budget <= 0:
        raise PlanError("the plan has no budget")
    if len(set(names)) < len(names):
        raise PlanError("two steps have the same name")
    if len(groups) > MOST_GROUPS:
        raise PlanError(f"{len(groups)} groups: at most {MOST_GROUPS} files of results come back")
    for word in (*names, *groups):
        if not word.replace("-", "").replace("_", "").replace(".", "").isalnum() or word.startswith("."):
            raise PlanError(f"{word!r} is no name for a file")
    for step in plan.steps:
        before = names[: names.index(step.name)]
        if late := set(step.after) - set(before):
            raise PlanError(f"step {step.name}: after {', '.join(sorted(late))}, which stands behind it or is unknown")
        if step.seconds <= 0 or not step.run:
            raise PlanError(f"step {step.name}: it needs a command and a time above 0")
        substituted(step, dict.fromkeys(VARIABLES, ""))


VARIABLES = ("python", "device", "out", "report", "files", "site", "cache", "work", "budget")


def substituted(step: Step, values: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment of a step with the values of its variables. Raises PlanError."""
    try:
        return [word.format(**values) for word in step.run], {k: v.format(**values) for k, v in step.env.items()}
    except (KeyError, ValueError, IndexError) as problem:
        raise PlanError(f"step {step.name}: unknown variable {problem}; there are {', '.join(VARIABLES)}") from problem


def normal(name: str) -> str:
    """Return the normalised name of a distribution."""
    return name.lower().replace("_", "-").replace(".", "-")
