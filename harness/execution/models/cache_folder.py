"""The folder that keeps the generated models and adapters between runs."""

from __future__ import annotations

from pathlib import Path

import platformdirs

from coldproof import harness

CHECKOUT_FOLDER = ".coldproof"


def default_cache() -> Path:
    """Return `.coldproof` of the checkout that this code runs from; for an installation, the user's cache folder."""
    beside = Path(harness.__file__).resolve().parent.parent
    if (beside / "pyproject.toml").is_file():
        return beside / CHECKOUT_FOLDER
    return Path(platformdirs.user_cache_dir("coldproof"))


def generated_files(cache: Path | None = None) -> Path:
    """Return the folder of models and adapters, which runs share; scratch folders of runs are beside it."""
    return (cache or default_cache()) / "cache"
