"""The environment of this process, while another thread changes it."""

from __future__ import annotations

import os
import threading

from coldproof.adapters.common.environment import current_environment


def test_the_environment_can_be_copied_while_another_thread_changes_it() -> None:
    """An engine sets variables while it starts, and `dict(os.environ)` raises KeyError then. A run lost a case by
    it.
    """
    ended = threading.Event()

    def change() -> None:
        while not ended.is_set():
            for number in range(20):
                os.environ[f"COLDPROOF_TEST_{number}"] = "1"
            for number in range(20):
                del os.environ[f"COLDPROOF_TEST_{number}"]

    thread = threading.Thread(target=change)
    thread.start()
    try:
        copies = [current_environment() for _ in range(3000)]
    finally:
        ended.set()
        thread.join()
    assert all(copy["PATH"] == os.environ["PATH"] for copy in copies)
