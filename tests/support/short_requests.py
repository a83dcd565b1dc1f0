"""A pytest plugin for runs against servers that never answer: it lowers the minimum request timeout."""

from __future__ import annotations

import os

from coldproof.harness.execution.engines import pool

pool.LEAST_REQUEST_SECONDS = float(os.environ["LEAST_REQUEST_SECONDS"])
