"""Hypothesis as this project uses it: its own database, shrinking and statistics; no deadline, for engines are slow."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings
from hypothesis.database import (
    DirectoryBasedExampleDatabase,
    ExampleDatabase,
    GitHubArtifactDatabase,
    MultiplexedDatabase,
    ReadOnlyDatabase,
)

from harness.budget import MOST_PATIENT
from harness.options import PROFILES, QUALIFY, UsageError

EXAMPLES = Path(".hypothesis") / "examples"


def load_settings(profile: str, *, quick: bool, examples_from: str | None = None) -> None:
    """Register and load one hypothesis profile per profile of ours; an unknown name is reported later, as usage."""
    known = database(examples_from)
    for name, figures in PROFILES.items():
        settings.register_profile(
            f"coldproof-{name}",
            # The profile's are enough (harness/budget.py) where they have shown what they must.
            max_examples=max(MOST_PATIENT, figures.fingerprint_examples if quick else figures.examples),
            # A qualification draws from its seed alone, and not what some run of before left on this machine.
            database=known if name != QUALIFY else None,
            deadline=None,
            derandomize=False,  # hypothesis' own CI profile would draw the same examples for ever
            report_multiple_bugs=False,
            phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.target, Phase.shrink),
            suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example),
        )
    settings.load_profile(f"coldproof-{profile if profile in PROFILES else 'smoke'}")


def database(examples_from: str | None) -> ExampleDatabase:
    """This machine's failing examples, and those that a repository's CI has kept, where they are asked for.

    Nothing is fetched before an example is looked up. Raises UsageError for what is no repository.
    """
    local = DirectoryBasedExampleDatabase(EXAMPLES)
    if examples_from is None:
        return local
    found = re.fullmatch(r"([\w.-]+)/([\w.-]+)", examples_from)
    if found is None:
        raise UsageError(f"--examples-from {examples_from!r} is no repository of GitHub's: write OWNER/NAME")
    return MultiplexedDatabase(local, ReadOnlyDatabase(GitHubArtifactDatabase(found[1], found[2])))
