"""Hypothesis settings: a database of failing examples, shrinking, and no deadline, because engines are slow."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings
from hypothesis.database import (
    DirectoryBasedExampleDatabase,
    ExampleDatabase,
    GitHubArtifactDatabase,
    MultiplexedDatabase,
    ReadOnlyDatabase,
)

from coldproof.harness.options import PROFILES, QUALIFY, UsageError
from coldproof.harness.session.budget import PATIENT_EXAMPLES

EXAMPLES = Path(".hypothesis") / "examples"
PATCHES = "hypothesis.extra._patching"


def leave_out_patches() -> None:
    """Let hypothesis write no patches with failing examples: a case is the record of a failure here.

    Its plugin would import the module for them at each failure, and pytest would parse that anew each time. On CPython
    3.11, parsing can end a run whose threads parse as well (cpython#106905).
    """
    sys.modules[PATCHES] = None  # type: ignore[assignment]  # as the import system documents it


def load_settings(profile: str, *, quick: bool, examples_from: str | None = None) -> None:
    """Register a hypothesis profile for each profile, and load one. validation.py reports an unknown name."""
    leave_out_patches()
    known = database(examples_from)
    for name, figures in PROFILES.items():
        settings.register_profile(
            f"coldproof-{name}",
            # The budget ends a trial earlier if it has all its evidence (harness/session/budget.py).
            max_examples=max(PATIENT_EXAMPLES, figures.fingerprint_examples if quick else figures.examples),
            # A qualification depends only on its seed, not on examples that earlier runs stored on this machine.
            database=known if name != QUALIFY else None,
            deadline=None,
            derandomize=False,  # hypothesis' own CI profile would draw the same examples in every run
            report_multiple_bugs=False,
            phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.target, Phase.shrink),
            suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example),
        )
    settings.load_profile(f"coldproof-{profile if profile in PROFILES else 'smoke'}")


def database(examples_from: str | None) -> ExampleDatabase:
    """Return the failing examples of this machine and, if `examples_from` is given, those of a GitHub repository's CI.

    Nothing is downloaded before hypothesis looks up an example. Raises UsageError for an invalid repository name.
    """
    local = DirectoryBasedExampleDatabase(EXAMPLES)
    if examples_from is None:
        return local
    found = re.fullmatch(r"([\w.-]+)/([\w.-]+)", examples_from)
    if found is None:
        raise UsageError(f"--examples-from {examples_from!r}: invalid repository; use OWNER/REPO")
    return MultiplexedDatabase(local, ReadOnlyDatabase(GitHubArtifactDatabase(found[1], found[2])))
