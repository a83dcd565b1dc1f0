"""Cold answers are there with a second engine, with salts, or as the adapter says: otherwise nothing is judged."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.registry import CELLS
from coldproof.harness.execution.engines.given_capabilities import given_capabilities
from coldproof.harness.judgement.requirement import missing
from coldproof.harness.options import COLD_ENGINE, SAME_ENGINE
from coldproof.harness.session.selftest.scripted_engine import ScriptedEngine

COLD = {Capability.COLD_ANSWERS, Capability.WITHOUT_CACHE}


@pytest.mark.parametrize(
    ("oracle", "salts", "given"), [(COLD_ENGINE, False, COLD), (SAME_ENGINE, True, COLD), (SAME_ENGINE, False, set())]
)
def test_where_cold_answers_come_from(oracle: str, salts: bool, given: set[Capability]) -> None:
    """Without a second engine and without salts, the adapter's own word counts."""
    engine = ScriptedEngine()
    engine.capabilities = {**engine.capabilities, Capability.CACHE_SALT: Support(salts, "as the test says")}
    options: Any = SimpleNamespace(oracle=oracle)
    found = given_capabilities(engine, CELLS["default"], options)
    assert set(found) == given
    assert all(support.present is True for support in found.values())


def test_without_cold_answers_no_requirement_can_be_tested() -> None:
    """Agreement with an answer that may be warm shows nothing."""
    capabilities = {**ScriptedEngine().capabilities, Capability.COLD_ANSWERS: Support(False, "give --cold-url")}
    (lacks,) = missing(capabilities, (Capability.TOKEN_PROMPTS,), contents=0, versions=0)
    assert str(lacks) == "cold answers: give --cold-url"
