"""SGLang's server, by its own routes. Its owner started it, and knows with which flags."""

from __future__ import annotations

from harness.dialects.dialect import Dialect
from reports.schema import Case


def command(case: Case) -> str:
    """Where the server was."""
    return f"(your server at {case.engine_config.get('url', 'its URL')})"


SGLANG = Dialect(template="sglang.py.j2", command=command)
