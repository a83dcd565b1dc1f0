"""Cold answers are there with a second engine, with salts, or as the adapter says: otherwise nothing is judged."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.registry import CELLS
from coldproof.harness.execution.engines.given_capabilities import given_capabilities
from coldproof.harness.judgement.requirement import missing
from coldproof.harness.options import COLD_ENGINE, SAME_ENGINE, Options
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
    assert set(found) - {Capability.ADAPTER_SLOTS} == given
    assert all(support.present is True for support in found.values())


@pytest.mark.parametrize("slots", [None, 4])
def test_more_adapters_than_slots_need_a_number_of_slots(slots: int | None) -> None:
    """Without one, LORA-7 is UNSUPPORTED: no workload could show that an adapter was evicted."""
    engine = ScriptedEngine()
    engine.shape = msgspec.structs.replace(engine.shape, adapter_slots=slots)
    found = {
        **engine.capabilities,
        **given_capabilities(engine, CELLS["default"], Options(engine="vllm", report_dir=Path("report"))),
    }
    lacks = [str(one) for one in missing(found, (Capability.ADAPTER_SLOTS,), contents=1, versions=0)]
    assert bool(lacks) == (slots is None), lacks


def test_without_cold_answers_no_requirement_can_be_tested() -> None:
    """Agreement with an answer that may be warm shows nothing."""
    capabilities = {**ScriptedEngine().capabilities, Capability.COLD_ANSWERS: Support(False, "give --cold-url")}
    (lacks,) = missing(capabilities, (Capability.TOKEN_PROMPTS,), contents=0, versions=0)
    assert str(lacks) == "cold answers: give --cold-url"
