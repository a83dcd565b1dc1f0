"""The table of what an attached server lets a run test: every number follows from needs and capabilities."""

from __future__ import annotations

import pytest
from support import fake_reply, fake_server

from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.registry import ENGINES, served_engine
from coldproof.adapters.server.probes import CACHE_CONFIG
from coldproof.harness.judgement.counters import Evidence
from coldproof.harness.judgement.evidence.cache import Pressure
from coldproof.harness.judgement.evidence.requests import Requests
from coldproof.harness.judgement.requirement import Requirement
from coldproof.harness.session.switches import OWN_ADAPTERS, OWN_WEIGHTS, Server, table_of

COUNTS, LORA, RESETS, POOL = (one.name for one in ENGINES["vllm"].switches)
IDS = (Capability.TOKEN_PROMPTS, Capability.TOKEN_OUTPUTS)


def requirement(name: str, *needs: Capability, shows: Evidence = Requests.REQUESTS) -> Requirement:
    """Return a requirement with these needs beside token ids, and this evidence."""
    return Requirement(id=name, title=name, needs=(*IDS, *needs), shows=(shows,))


REQUIREMENTS = (
    requirement("CHAT-1"),
    requirement("REUSE-1", Capability.CACHED_TOKENS),
    requirement("CTRL-1", Capability.CACHED_TOKENS, Capability.CACHE_RESET),
    requirement("CTRL-1", Capability.CACHED_TOKENS, Capability.CACHE_RESET, Capability.RUNTIME_LORA),
    requirement("LORA-1", Capability.CACHED_TOKENS, Capability.RUNTIME_LORA, Capability.LORA_IN_PLACE),
    requirement("LORA-4", Capability.ADAPTER_CHOICE),
    requirement("WEIGHT-1", Capability.WEIGHT_UPDATES),
    requirement("DIST-1", Capability.SEVERAL_RANKS),
    requirement("PREEMPT-1", shows=Pressure.PREEMPTIONS),
)
VLLM_CONFIG = {f"{CACHE_CONFIG}block_size": "16"}


def server(*present: Capability, unknown: tuple[Capability, ...] = (), versions: int = 0, pool: int = 9999) -> Server:
    """Return a server with these capabilities, and with token ids."""
    states = {Capability.COLD_ANSWERS: True} | {**dict.fromkeys((*IDS, *present), True), **dict.fromkeys(unknown)}
    capabilities = {one: Support(states.get(one, False), "probed") for one in Capability}
    return Server(capabilities=capabilities, contents=0, versions=versions, pool=pool, fits=3000, block=32)


def test_each_switch_says_how_many_requirements_it_would_add() -> None:
    """With all others set; and alone. DIST-1 needs what no switch gives."""
    table = table_of("endpoint", VLLM_CONFIG, server(versions=1), REQUIREMENTS)
    assert (table.engine, table.known, table.requirements) == ("vLLM", True, 8)
    assert (table.now, table.with_all) == (["CHAT-1"], 7)
    assert {row.name: (row.adds_requirements, row.alone) for row in table.missing} == {
        COUNTS: (["CTRL-1", "LORA-1", "REUSE-1"], 1),
        LORA: (["LORA-1", "LORA-4"], 1),
        RESETS: (["CTRL-1", "WEIGHT-1"], 1),
        POOL: (["PREEMPT-1"], 1),
    }
    assert table.missing[0].name == COUNTS  # the one that adds most comes first


def test_switches_that_are_set_have_no_line() -> None:
    """What a line promised is what the next run can test."""
    now = server(Capability.CACHED_TOKENS, versions=1, pool=2000)
    table = table_of("endpoint", VLLM_CONFIG, now, REQUIREMENTS)
    assert table.now == ["CHAT-1", "PREEMPT-1", "REUSE-1"]
    assert [row.name for row in table.missing] == [LORA, RESETS]


def test_a_pool_that_workloads_fill_is_a_switch_too() -> None:
    """Its line says how large the pool may be at most: half of the largest workload."""
    table = table_of("endpoint", VLLM_CONFIG, server(versions=1), REQUIREMENTS)
    (row,) = (one for one in table.missing if one.name == POOL)
    assert "--num-gpu-blocks-override 93 --max-model-len 1472" in row.how


def test_evidence_in_counts_needs_counts() -> None:
    """Answers can be compared without counts, but whether they were hits is unknown."""
    chats = requirement("CHAT-1", shows=Requests.HITS)
    assert table_of("endpoint", VLLM_CONFIG, server(), [chats]).now == []
    assert table_of("endpoint", VLLM_CONFIG, server(Capability.CACHED_TOKENS), [chats]).now == ["CHAT-1"]


def test_without_an_adapter_to_probe_both_sides_are_named() -> None:
    """Whether the server loads adapters is unknown then: its own switch may be set, and Coldproof lacks an option."""
    unknown = (Capability.RUNTIME_LORA, Capability.LORA_IN_PLACE, Capability.ADAPTER_CHOICE, Capability.MIXED_ADAPTERS)
    table = table_of("endpoint", VLLM_CONFIG, server(unknown=unknown, versions=1), REQUIREMENTS)
    rows = {row.name: row for row in table.missing}
    assert rows[LORA].adds_requirements == rows[OWN_ADAPTERS.name].adds_requirements == ["LORA-1", "LORA-4"]
    assert rows[LORA].alone == rows[OWN_ADAPTERS.name].alone == 0


def test_another_checkpoint_is_an_option_of_coldproof() -> None:
    """Updates of the weights need another version of them, whatever the server can do."""
    able = server(Capability.WEIGHT_UPDATES, Capability.CACHE_RESET)
    table = table_of("endpoint", VLLM_CONFIG, able, REQUIREMENTS)
    assert [row.adds_requirements for row in table.missing if row.name == OWN_WEIGHTS.name] == [["WEIGHT-1"]]


def test_a_server_that_nothing_recognises_has_no_known_switches() -> None:
    """A run then says so."""
    table = table_of("endpoint", {}, server(versions=1), REQUIREMENTS)
    assert (table.known, table.missing, table.with_all) == (False, [], 1)


@pytest.mark.parametrize("engine", [name for name, spec in ENGINES.items() if spec.switches])
def test_every_switch_gives_something_and_says_how(engine: str) -> None:
    """A line without a count or a command helps nobody."""
    for switch in ENGINES[engine].switches:
        assert switch.gives or switch.small_pool
        assert all(part.removesuffix("=1").removesuffix("=True") in switch.how for part in switch.name.split(" with "))


def test_a_vllm_server_is_recognised_by_its_metrics() -> None:
    """The adapter for any server has no switches of its own."""
    with fake_server.serving(fake_reply.ServerBehaviour(metrics=fake_reply.METRICS)) as fake:
        attach = ENGINES["endpoint"].attach
        assert attach is not None
        engine = attach(fake.url, adapter_for=lambda _: None)
    assert served_engine("endpoint", engine.config).name == "vllm"
    assert served_engine("sglang", {}).name == "sglang"
