"""Whether the tests that draw their examples draw the same ones each time.

A run in CI has to say something about the change in hand, so it repeats; COLDPROOF_RANDOM_TESTS=1 looks for new ones.
"""

from __future__ import annotations

import os

REPEATS = "COLDPROOF_RANDOM_TESTS" not in os.environ
