"""Hypothesis as this project uses it: its own database, shrinking and statistics; no deadline, for engines are slow."""

from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, Phase, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from harness.options import PROFILES, QUALIFY

EXAMPLES = Path(".hypothesis") / "examples"


def load_settings(profile: str, *, quick: bool) -> None:
    """Register and load one hypothesis profile per profile of ours; an unknown name is reported later, as usage."""
    for name, figures in PROFILES.items():
        settings.register_profile(
            f"coldproof-{name}",
            max_examples=figures.fingerprint_examples if quick else figures.examples,
            # A qualification draws from its seed alone, and not what some run of before left on this machine.
            database=DirectoryBasedExampleDatabase(EXAMPLES) if name != QUALIFY else None,
            deadline=None,
            derandomize=False,  # hypothesis' own CI profile would draw the same examples for ever
            report_multiple_bugs=False,
            phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.target, Phase.shrink),
            suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example),
        )
    settings.load_profile(f"coldproof-{profile if profile in PROFILES else 'smoke'}")
