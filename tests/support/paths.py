"""The checkout that these tests belong to, and options that run its suites so that no clock decides a verdict."""

from __future__ import annotations

import os
from pathlib import Path

from coldproof import IMPORT_ROOT

ROOT = Path(__file__).resolve().parents[2]
PLUGIN_PATH = os.pathsep.join((IMPORT_ROOT, str(ROOT / "tests")))  # plugins are imported before pytest reads settings
# A number of examples ends each trial, and the same ones are drawn each time.
COUNTED = ("-p", "support.counted_budget", "--budget", "1h", "--hypothesis-seed", "5")
