"""Finds what several runs have in common, where they differ, and which runs' verdicts can be compared.

Nothing is summed over runs, and no verdict changes. Differences are reported for the reader to judge.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime

import msgspec

from coldproof.harness.schema.results import Results
from coldproof.reports.format.text import duration, listed, number
from coldproof.reports.side_by_side.columns import Column
from coldproof.reports.views import run_facts
from coldproof.reports.views.run_facts import LARGE_FACTOR

UNKNOWN = "unknown"  # what an environment reports outside a checkout
_NAMED = 6  # requirements named in a sentence; the page lists all of them


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One property that differs between runs: the values of the runs, and what follows from the difference."""

    what: str
    sides: list[tuple[str, list[str]]]  # a value, and the labels of the runs that have it
    consequence: str
    decisive: bool

    @property
    def values(self) -> str:
        """Every value with the runs that have it."""
        return "; ".join(f"{value} in {listed(labels)}" for value, labels in self.sides)


class Trait(msgspec.Struct, frozen=True):
    """One property that runs are compared by. If a decisive one differs, verdicts cannot be compared."""

    what: str
    value: Callable[[Results], str]
    consequence: str
    decisive: bool = True
    similar: Callable[[Results, Results], bool] | None = None  # without it, values must be equal

    def alike(self, one: Results, other: Results) -> bool:
        """Return whether the property is equal or similar in two runs."""
        return self.similar(one, other) if self.similar else self.value(one) == self.value(other)


def differences(runs: Sequence[Column], *, series: bool = False) -> list[Difference]:
    """Return the properties that differ, the decisive ones first. A single run has none.

    `series`: each run follows on the one before, so that they should have one engine and one adapter.
    """
    pairs = list(itertools.combinations([run.results for run in runs], 2))
    return [_difference(trait, runs) for trait in _traits(series) if not all(trait.alike(*pair) for pair in pairs)]


def notes(runs: Sequence[Column], *, series: bool = False, by_time: bool = False) -> list[str]:
    """Return notes on incomplete or invalid runs, and on what a run lacks. `by_time`: they are in order of their start.

    The cells of other engines differ, and are compared in a series only.
    """
    said = [note for run in runs for note in run_facts.run_problems(run.results, f"The run of {run.label}")]
    valid = [run for run in runs if not run.invalid]
    said += _lacking(valid, {run.label: {one.id for one in run.results.requirements} for run in valid})
    if series:
        said += _lacking(valid, {run.label: set(run.cells) for run in valid}, "cell")
    if by_time:
        said += [
            f"The run of {later.label} started before that of {earlier.label}. The runs may be swapped."
            for earlier, later in itertools.pairwise(runs)
            if _swapped(earlier.results, later.results)
        ]
    return said


def _lacking(runs: Sequence[Column], names: Mapping[str, set[str]], word: str = "") -> Iterator[str]:
    """Yield what each run does not have of all that the runs have. `names`: of each run, by its label.

    `word`: before each name; "" for requirements, whose ids say what they are.
    """
    every = set().union(*names.values())
    for run in runs:
        lacking = sorted(every - names[run.label])
        if lacking:
            named = listed([f"{word} {name}".strip() for name in lacking])
            said = named if len(lacking) <= _NAMED else f"{len(lacking)} of these {len(every)} {word or 'requirement'}s"
            yield f"Not in the run of {run.label}: {said}."


def _swapped(earlier: Results, later: Results) -> bool:
    """Return whether the later run started first. Times that cannot be read or compared say nothing."""
    try:
        began, then = (datetime.fromisoformat(one.started) for one in (earlier, later))
    except ValueError:
        return False
    return began.tzinfo is not None and then.tzinfo is not None and then < began


def comparable_groups(runs: Sequence[Column], *, series: bool = False) -> list[str]:
    """Return a sentence for each group of comparable runs. A single run has none."""
    traits = _traits(series)
    groups = _groups([run for run in runs if not run.invalid], traits)
    return [_sentence(group, groups[0], traits) for group in groups] if len(runs) > 1 else []


def _groups(runs: Sequence[Column], traits: Sequence[Trait]) -> list[list[Column]]:
    """Return groups of runs that are pairwise comparable, the largest group first, else in the order given."""
    groups: list[list[Column]] = []
    for run in runs:
        home = next((group for group in groups if not any(_unlike(run, other, traits) for other in group)), None)
        if home is None:
            groups.append([run])
        else:
            home.append(run)
    return sorted(groups, key=lambda group: -len(group))


def _sentence(group: list[Column], first: list[Column], traits: Sequence[Trait]) -> str:
    said = "Can be compared with each other" if len(group) > 1 else "Not comparable with the other runs"
    named = f"{said}: {listed([run.label for run in group])}"
    if group is first:
        return f"{named}."
    # Similarity is not transitive: budgets are similar within a factor.
    other, why = next((run, why) for run in first for one in group if (why := _unlike(one, run, traits)))
    return f"{named}. Differs from {other.label} in: {listed(why)}."


def _unlike(one: Column, other: Column, traits: Sequence[Trait]) -> list[str]:
    """Return the decisive properties that differ between two runs."""
    return [trait.what for trait in traits if trait.decisive and not trait.alike(one.results, other.results)]


def _difference(trait: Trait, runs: Sequence[Column]) -> Difference:
    sides: dict[str, list[str]] = {}
    for run in runs:
        sides.setdefault(trait.value(run.results), []).append(run.label)
    return Difference(
        what=trait.what, sides=list(sides.items()), consequence=trait.consequence, decisive=trait.decisive
    )


def _given(results: Results) -> float:
    """Return the average seconds for drawing one requirement's examples in one cell; 0 if none was given."""
    shares = [cell.share for requirement in results.requirements for cell in requirement.cells if cell.share]
    return run_facts.budget(results) / len(shares) if shares else 0.0


def _similar_budgets(one: Results, other: Results) -> bool:
    """Return whether two budgets are similar. A run without a budget is similar to all.

    The seconds for drawing examples are redistributed during a run, so that only a large factor counts.
    """
    low, high = sorted((_given(one), _given(other)))
    return not low or high < LARGE_FACTOR * low


def _same_suites(one: Results, other: Results) -> bool:
    return one.coldproof_version == other.coldproof_version or _commit(one) == _commit(other) != UNKNOWN


def _commit(results: Results) -> str:
    return results.environment.get("coldproof commit", UNKNOWN)


def _noise(results: Results) -> str:
    calibration = results.calibration
    if calibration is None or calibration.noise_nats is None:
        return "not measured"
    return "not used, comparison is token-exact" if calibration.exact else f"{number(calibration.noise_nats)} nats"


def _trait(what: str, consequence: str, *, of: str = "", decisive: bool = True) -> Trait:
    """Return one of the properties that describe a run. `of`: its name there."""
    return Trait(what, lambda results: run_facts.traits(results)[of or what], consequence, decisive)


def _traits(series: bool) -> tuple[Trait, ...]:
    return (*_OF_ONE_ENGINE, *_TRAITS) if series else _TRAITS


_OF_ONE_ENGINE = (
    _trait("engine", "The runs are of different engines."),
    _trait("adapter", "Another adapter may support and report different things."),
)
_TRAITS = (
    _trait("profile", "Cells and search depth may differ."),
    Trait(
        "budget",
        lambda results: f"{duration(_given(results) or None)} for each requirement and cell",
        "With the smaller budget, less was searched: violations may be missed, and seem fixed or new.",
        similar=_similar_budgets,
    ),
    _trait("worker", "The model worker and the fingerprint worker detect different faults."),
    _trait("comparison rule", "Answers were compared in a different way.", of="rule"),
    _trait("oracle", "The cold answers are from a different source."),
    _trait("injected fault", "The results do not describe the same engine."),
    _trait("repairs", "The results do not describe the same engine."),
    Trait(
        "Coldproof",
        lambda results: results.coldproof_version,
        "One version may test for violations that the other does not test for.",
        similar=_same_suites,
    ),
    Trait("commit of Coldproof", _commit, "Requirements may be tested in different ways.", decisive=False),
    Trait("noise floor", _noise, "Differences below the noise floor are INCONCLUSIVE.", decisive=False),
    Trait(
        "seed", lambda results: results.seed, "Different examples were drawn for the same requirements.", decisive=False
    ),
    Trait(
        "known issues",
        lambda results: "used" if results.waivers else "none",
        "A requirement that is VIOLATED in one run may be a KNOWN ISSUE in the other.",
        decisive=False,
    ),
    _trait("machine", "Times cannot be compared.", decisive=False),
)
