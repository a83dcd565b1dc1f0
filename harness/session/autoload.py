"""pytest's entry point: loads the plugin only in sessions that run Coldproof's suites.

pytest loads this module in every session of an environment. The plugin's options would clash with other plugins'
(pytest-profiling also has `--profile`), so it is loaded only where a test path names our suites.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from coldproof.harness.session.pytest_command import PLUGIN, SUITES_FOLDER

SUITES = "coldproof.suites"


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Load the plugin before pytest checks the options, so that it knows ours."""
    if names_our_suites(list(early_config.known_args_namespace.file_or_dir)):
        early_config.pluginmanager.import_plugin(PLUGIN)


def names_our_suites(words: list[str]) -> bool:
    """Return whether a test path is the package of our suites or lies in its folder."""
    if any(word == SUITES or word.startswith((f"{SUITES}.", f"{SUITES}::")) for word in words):
        return True
    paths = [Path(word.split("::")[0]).resolve() for word in words]
    return any(SUITES_FOLDER in (path, *path.parents) for path in paths)
