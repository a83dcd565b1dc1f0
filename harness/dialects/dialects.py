"""Every dialect, by the adapter that a case was found with."""

from __future__ import annotations

from harness.dialects.dialect import Dialect
from harness.dialects.llamacpp import LLAMACPP
from harness.dialects.openai import OPENAI
from harness.dialects.openvino import OPENVINO
from harness.dialects.transformers import TRANSFORMERS
from reports.schema import Case

DIALECTS = {"llamacpp": LLAMACPP, "openvino": OPENVINO, "transformers": TRANSFORMERS}


def dialect_of(case: Case) -> Dialect:
    """The language of a case's engine; most speak as OpenAI's."""
    return DIALECTS.get(case.engine, OPENAI)
