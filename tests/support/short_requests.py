"""A pytest plugin for runs on servers that never answer: a request gets less than the usual least time."""

from __future__ import annotations

import os

from coldproof.harness.execution.engines import pool

pool.LEAST_REQUEST_SECONDS = float(os.environ["LEAST_REQUEST_SECONDS"])
