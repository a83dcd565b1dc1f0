"""What several runs have in common and in what they differ, in words: whose verdicts may be read beside whose.

Nothing is added up over runs, and no verdict changes: a difference is told, and whoever reads decides.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import msgspec

from reports import comparability, overview
from reports.comparability import CONSEQUENCE, MUCH
from reports.schema import Results
from reports.text import duration, listed, number

UNKNOWN = "unknown"  # as an environment says that was no checkout
_NAMED = 6  # requirements; more are counted, and the page has them row by row


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run under the label by which the sentences call it."""

    label: str
    results: Results


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is not the same in all runs: who has what, and what follows from that."""

    what: str
    sides: list[tuple[str, list[str]]]  # a value, and the labels of the runs that have it
    consequence: str
    decisive: bool

    @property
    def told(self) -> str:
        """Every value and the runs that have it."""
        return "; ".join(f"{value} in {listed(labels)}" for value, labels in self.sides)


class Trait(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that runs are compared by. `decisive`: where it differs, verdicts do not say the same."""

    what: str
    value: Callable[[Results], str]
    consequence: str
    decisive: bool = True

    def alike(self, one: Results, other: Results) -> bool:
        """Whether two runs have it in common."""
        return self.value(one) == self.value(other)


class Budget(Trait, frozen=True):
    """Seconds of drawing: dealt out anew during a run, so that only a large factor is a difference."""

    def alike(self, one: Results, other: Results) -> bool:
        """A run that did not record it differs from none."""
        low, high = sorted((_given(one), _given(other)))
        return not low or high < MUCH * low


class Suite(Trait, frozen=True):
    """Which Coldproof asked: its version, or its commit where that is known of both, as from a bare checkout."""

    def alike(self, one: Results, other: Results) -> bool:
        """One commit is one suite, whatever its package says; of one version there may be several."""
        return one.coldproof_version == other.coldproof_version or _commit(one) == _commit(other) != UNKNOWN


def differences(runs: Sequence[Run]) -> list[Difference]:
    """What is not alike; what keeps verdicts from being compared stands first. None where there is but one run."""
    pairs = list(itertools.combinations([run.results for run in runs], 2))
    return [_difference(trait, runs) for trait in _TRAITS if not all(trait.alike(*pair) for pair in pairs)]


def notes(runs: Sequence[Run]) -> list[str]:
    """What is missing in a run taken by itself, and which requirements of the others it lacks."""
    said = [note for run in runs for note in comparability.states(run.results, f"The run of {run.label}")]
    valid = _valid(runs)
    asked = {requirement.id for run in valid for requirement in run.results.requirements}
    for run in valid:
        lacking = sorted(asked - {requirement.id for requirement in run.results.requirements})
        if lacking:
            what = listed(lacking) if len(lacking) <= _NAMED else f"{len(lacking)} of these {len(asked)} requirements"
            said.append(f"Not in the run of {run.label}: {what}.")
    return said


def standing_together(runs: Sequence[Run]) -> list[str]:
    """Whose verdicts can be compared and whose stand alone, a sentence each; none where there is but one run."""
    groups = _groups(_valid(runs))
    return [_sentence(group, groups[0]) for group in groups] if len(runs) > 1 else []


def _valid(runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if not overview.missed(run.results)]


def _groups(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs that are alike each with each, the largest group first, else in the order given."""
    groups: list[list[Run]] = []
    for run in runs:
        home = next((group for group in groups if not any(_unlike(run, other) for other in group)), None)
        if home is None:
            groups.append([run])
        else:
            home.append(run)
    return sorted(groups, key=lambda group: -len(group))


def _sentence(group: list[Run], first: list[Run]) -> str:
    said = "Can be compared with each other" if len(group) > 1 else "Stands by itself"
    named = f"{said}: {listed([run.label for run in group])}"
    if group is first:
        return f"{named}."
    # Two runs may each be like a third and not like one another: a budget is alike within a factor.
    other, why = next((run, why) for run in first for one in group if (why := _unlike(one, run)))
    return f"{named}. Not comparable with {other.label}: another {listed(why)}."


def _unlike(one: Run, other: Run) -> list[str]:
    """What keeps the verdicts of two runs from being compared."""
    return [trait.what for trait in _TRAITS if trait.decisive and not trait.alike(one.results, other.results)]


def _difference(trait: Trait, runs: Sequence[Run]) -> Difference:
    sides: dict[str, list[str]] = {}
    for run in runs:
        sides.setdefault(trait.value(run.results), []).append(run.label)
    return Difference(
        what=trait.what, sides=list(sides.items()), consequence=trait.consequence, decisive=trait.decisive
    )


def _given(results: Results) -> float:
    """Seconds that were given, on average, for drawing one requirement's examples in one cell; 0: not recorded."""
    shares = [cell.share for requirement in results.requirements for cell in requirement.cells if cell.share]
    return comparability.budget(results) / len(shares) if shares else 0.0


def _commit(results: Results) -> str:
    return results.environment.get("coldproof commit", UNKNOWN)


def _noise(results: Results) -> str:
    calibration = results.calibration
    if calibration is None or calibration.noise_nats is None:
        return "not measured"
    return "no matter, every token counts" if calibration.exact else f"{number(calibration.noise_nats)} nats"


def _trait(what: str, *, of: str = "", consequence: str = "", decisive: bool = True) -> Trait:
    """One of those by which two runs of an engine are compared too."""
    name = of or what
    return Trait(
        what=what,
        value=lambda results: comparability.traits(results)[name],
        consequence=consequence or CONSEQUENCE[name],
        decisive=decisive,
    )


_TRAITS = (
    _trait("profile"),
    Budget(
        what="budget",
        value=lambda results: f"{duration(_given(results) or None)} a requirement and cell",
        consequence="What conforms with the smaller one was looked for less.",
    ),
    _trait("worker"),
    _trait("comparison rule", of="rule"),
    _trait("oracle"),
    _trait("injected fault"),
    Suite(
        what="Coldproof",
        value=lambda results: results.coldproof_version,
        consequence="What the one violates may not have been looked for in the other.",
    ),
    Trait(
        what="commit of Coldproof",
        value=_commit,
        consequence="Requirements may be put in other ways.",
        decisive=False,
    ),
    Trait(
        what="noise floor",
        value=_noise,
        consequence="Differences below it are INCONCLUSIVE.",
        decisive=False,
    ),
    Trait(
        what="seed",
        value=lambda results: results.seed,
        consequence="Other examples were drawn of the same requirements.",
        decisive=False,
    ),
    Trait(
        what="known issues",
        value=lambda results: "a file of them" if results.waivers else "none",
        consequence="What is VIOLATED here may be a KNOWN ISSUE there.",
        decisive=False,
    ),
    _trait("machine", decisive=False),
)
