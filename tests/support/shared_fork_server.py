"""One process with Coldproof and vLLM imported, from which all workers of pytest-xdist fork engines and runs."""

from __future__ import annotations

import os

import pytest
from support.imported_suites import import_suites

from coldproof.adapters.common import forked
from coldproof.harness.session.causes import replay_job
from coldproof.harness.session.layers.processes import all_imports

SHARED = "COLDPROOF_TESTS_FORK_SERVER"  # names its socket
IMPORTED = (*all_imports(), replay_job.__name__, f"{import_suites.__module__}:{import_suites.__qualname__}")


def share_fork_server(session: pytest.Session) -> None:
    """Start the fork server of all workers, and wait for it while they collect the tests."""
    server, address = forked.begin(*IMPORTED)
    os.environ[SHARED] = str(address)  # the workers inherit it

    class Wait:
        @pytest.hookimpl(tryfirst=True)
        def pytest_runtestloop(self) -> None:
            forked.await_imports(server, address)

    session.config.pluginmanager.register(Wait())


def use_shared_fork_server() -> None:
    """Let this process use it wherever Coldproof would start one with a part of its imports.

    Not through the variable by which Coldproof's own processes inherit one: then a run in an environment that a test
    has made, with another vLLM or none, would use it as well.
    """
    address = os.environ.get(SHARED)
    if not address:
        return
    started, shared = forked.own_fork_server, set(IMPORTED)
    forked.own_fork_server = lambda *preload: address if shared.issuperset(preload) else started(*preload)  # type: ignore[assignment]
