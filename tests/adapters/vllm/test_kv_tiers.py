"""Effects of a second KV tier on the harness: flags, counts, expected hits, evidence and workloads."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import find
from support.histories import history, outcome, record, shape

from coldproof.adapters.protocol.metrics import Metrics
from coldproof.adapters.vllm.cells.every import CELLS
from coldproof.adapters.vllm.fingerprint.connectors.deferred_copies import DeferredCopies
from coldproof.adapters.vllm.kv_tiers import (
    GIVEN,
    NOT_USED,
    TIERS,
    Tier,
    connector_config,
    given_tier,
    stores_before_eviction,
    tier_and_rest,
    tier_blocks,
    tier_flags,
)
from coldproof.adapters.vllm.server import VllmOptions, server_command
from coldproof.adapters.vllm.spec import check_arguments
from coldproof.harness.features.tiers.evidence import Tiers, tier_facts
from coldproof.harness.features.tiers.workloads import partitions, sent_again_after_gaps
from coldproof.harness.history.records import ResetRecord
from coldproof.harness.judgement.checkers.cached_tokens import check_accounting, check_bounds
from coldproof.harness.judgement.checkers.liveness import check_liveness
from coldproof.harness.workload.generators.prompts import WorkloadLimits
from coldproof.harness.workload.steps import Burst, Reset, Workload

TIERED = shape(second_tier=True)
ENDS = shape(second_tier=True, failed_load_ends_request=True)
PROMPT = range(48)
LIMITS = WorkloadLimits(block=16, slots=2, contents=("A", "B"), mixtures=frozenset(), longest=256, pool=256)


def transfer(tier: str) -> dict[str, Any]:
    """Return the configuration that vLLM gets for a tier."""
    flag, text = tier_flags(TIERS[tier], Path("/folder"), 4321)
    assert flag == "--kv-transfer-config"
    read: dict[str, Any] = json.loads(text)
    return read


def test_an_engine_gets_a_tier_with_a_folder_of_its_own(tmp_path: Path) -> None:
    """A fresh engine that found the files of another engine would not be fresh."""
    options = VllmOptions(model="m", log=tmp_path / "engine-07.log", tier=TIERS["example"])
    command = server_command(options, 1)
    given = json.loads(command[command.index("--kv-transfer-config") + 1])
    assert given["kv_connector_extra_config"]["shared_storage_path"] == str(tmp_path / "engine-07.tier")


def test_lmcache_gets_a_port_and_a_folder_of_its_own() -> None:
    """They are in the connector's options and in the flags of the server that it starts."""
    options = transfer("lmcache-files")["kv_connector_extra_config"]
    words = shlex.split(options["lmcache.mp.autostart.server_args"])
    assert options["lmcache.mp.port"] == "4321"
    assert json.loads(words[words.index("--l2-adapter") + 1]) == {"type": "fs", "base_path": "/folder"}
    assert (
        "coldproof-4321" in transfer("lmcache-chunks")["kv_connector_extra_config"]["lmcache.mp.autostart.server_args"]
    )


def test_the_users_configuration_has_a_placeholder_for_the_port() -> None:
    """The port has a placeholder, as the folder has."""
    tier = given_tier('{"kv_connector": "C", "kv_connector_extra_config": {"port": "{port}", "at": "{folder}/x"}}')
    options = connector_config(tier, Path("/folder"), 4321)["kv_connector_extra_config"]
    assert options == {"port": "4321", "at": "/folder/x"}


def test_an_engine_without_prefix_caching_has_no_tier(tmp_path: Path) -> None:
    """Its answers have to be cold."""
    options = VllmOptions(model="m", log=tmp_path / "log", tier=TIERS["example"], prefix_caching=False)
    assert "--kv-transfer-config" not in server_command(options, 1)


def test_a_tier_of_several_parts_describes_each() -> None:
    """The parts are described as MultiConnector expects them."""
    parts = transfer("multi")["kv_connector_extra_config"]["connectors"]
    assert [part["kv_connector"] for part in parts] == ["OffloadingConnector", "SimpleCPUOffloadConnector"]


@pytest.mark.parametrize(("tier", "policy"), [("failing", "recompute"), ("failing-ends", "fail")])
def test_the_policy_for_failed_loads_is_always_set(tier: str, policy: str) -> None:
    """vLLM's default has changed before."""
    assert transfer(tier)["kv_load_failure_policy"] == policy


def test_every_cells_tier_exists() -> None:
    """Every tier is found by name; one cell uses the user's connector."""
    assert {cell.tier for cell in CELLS if cell.tier is not None} <= {*TIERS, GIVEN}


USERS = {
    "kv_connector": "Mine",
    "kv_role": "kv_consumer",
    "kv_connector_module_path": "pack.mine",
    "kv_connector_extra_config": {"where": "{folder}/kv"},
    "kv_load_failure_policy": "fail",
}


@pytest.mark.parametrize("name", [None, "example", GIVEN])
@pytest.mark.parametrize("joined", [True, False], ids=["one word", "two words"])
def test_a_connector_of_the_user_is_the_tier_of_every_cell(name: str | None, joined: bool) -> None:
    """The user's settings are kept, the folder is the engine's own, and other flags are unchanged."""
    flag = [f"--kv-transfer-config={json.dumps(USERS)}"] if joined else ["--kv-transfer-config", json.dumps(USERS)]
    tier, rest = tier_and_rest(name, ("--seed", "1", *flag, "--x"))
    assert rest == ("--seed", "1", "--x")
    assert tier is not None
    assert tier.ends_requests
    policy = {key: text for key, text in USERS.items() if key != "kv_load_failure_policy"}
    assert connector_config(tier, Path("/own"), 4321) == policy | {"kv_connector_extra_config": {"where": "/own/kv"}}


def test_without_a_flag_a_cell_has_its_own_tier() -> None:
    """A cell may have no tier."""
    assert tier_and_rest("example", ("--x",)) == (TIERS["example"], ("--x",))
    assert tier_and_rest(None, ("--x",)) == (None, ("--x",))


def test_the_control_without_a_second_tier_leaves_out_the_users_too() -> None:
    """A control with the user's tier would not be a control."""
    assert tier_and_rest(NOT_USED, ("--kv-transfer-config", json.dumps(USERS), "--x")) == (None, ("--x",))


@pytest.mark.parametrize(
    "flag", [(), ("--kv-transfer-config",), ("--kv-transfer-config", "{}"), ("--kv-transfer-config", "x")]
)
def test_a_cell_for_the_users_connector_requires_the_flag(flag: tuple[str, ...]) -> None:
    """The flag is missing or describes no connector."""
    with pytest.raises(ValueError, match="connector"):
        tier_and_rest(GIVEN, flag)


def test_deferred_copies_complete_in_order_after_their_polls() -> None:
    """A copy is made when its completion is reported, and not before."""
    done: list[str] = []
    copies: DeferredCopies[str] = DeferredCopies()
    copies.submit("a", lambda: done.append("a"), 1)
    assert copies.poll() == []
    copies.submit("b", lambda: done.append("b"), 1)
    assert done == []
    assert copies.poll() == ["a"]
    assert done == ["a"]
    assert copies.poll() == ["b"]


def test_waiting_for_a_copy_carries_out_all_before_it_once() -> None:
    """The next poll reports their completion."""
    done: list[str] = []
    copies: DeferredCopies[str] = DeferredCopies()
    for key in "abc":
        copies.submit(key, lambda key=key: done.append(key), 5)  # type: ignore[misc]
    copies.wait({"b"})
    assert done == ["a", "b"]
    assert copies.poll() == ["a", "b"]
    copies.drain()
    assert done == ["a", "b", "c"]


def test_a_tier_may_bring_the_last_token_and_what_a_reset_removed() -> None:
    """Without a tier neither can be a hit."""
    reset = ResetRecord(began=0.6, ended=0.7, success=True)
    pair = (outcome(0, PROMPT), outcome(1, PROMPT, cached_tokens=48))
    assert check_bounds(history(*pair, shape=TIERED, resets=(reset,))) == []
    assert check_bounds(history(*pair))
    assert check_bounds(history(outcome(0, PROMPT), outcome(1, PROMPT, cached_tokens=47), resets=(reset,)))


def test_a_tier_does_not_excuse_another_identitys_blocks() -> None:
    """A salt holds for both tiers."""
    found = check_bounds(history(outcome(0, PROMPT), outcome(1, PROMPT, salt="red", cached_tokens=32), shape=TIERED))
    assert [finding.request for finding in found] == [1]


@pytest.mark.parametrize(("external", "cached"), [(32, 48), (None, 48)])
def test_hits_of_both_tiers_are_counted_together(external: int | None, cached: int) -> None:
    """If the second tier's count is unknown, the sum is not checked."""
    steps = (record(0, before=Metrics(hit_tokens=0, external_hit_tokens=external and 0)),)
    steps = (record(0, before=steps[0].before, after=Metrics(hit_tokens=16, external_hit_tokens=external)),)
    reported = outcome(0, PROMPT, cached_tokens=cached)
    assert check_accounting(history(reported, shape=TIERED, steps=steps), exclusive=True) == []


def test_hits_of_both_tiers_that_do_not_add_up_are_reported() -> None:
    """The count of each request has to include both tiers."""
    before, after = Metrics(hit_tokens=0, external_hit_tokens=0), Metrics(hit_tokens=16, external_hit_tokens=16)
    made = history(outcome(0, PROMPT, cached_tokens=16), shape=TIERED, steps=(record(0, before=before, after=after),))
    assert len(check_accounting(made, exclusive=True)) == 1


def ended(number: int, prompt: range) -> Any:
    """Return a request that ended with an error in step 0."""
    return outcome(number, prompt, (), error="HTTP 500", step=0)


@pytest.mark.parametrize(
    ("prompts", "failed", "failing"),
    [
        ((PROMPT,), 1, []),
        ((PROMPT,), 0, [0]),
        ((PROMPT, PROMPT), 1, []),  # they share the blocks
        ((PROMPT, range(100, 148)), 1, [1]),
        ((PROMPT, range(100, 148)), 2, []),
    ],
)
def test_as_many_prefixes_may_end_as_loads_failed(prompts: tuple[range, ...], failed: int, failing: list[int]) -> None:
    """Each failed load excuses the requests that share its prefix, and no other request."""
    steps = (record(0, before=Metrics(failed_loads=0), after=Metrics(failed_loads=failed)),)
    made = history(*(ended(i, prompt) for i, prompt in enumerate(prompts)), shape=ENDS, steps=steps)
    assert [finding.request for finding in check_liveness(made)] == failing


def test_a_failed_load_that_is_recomputed_excuses_no_answer() -> None:
    """With the policy to recompute, the request has to be answered."""
    steps = (record(0, before=Metrics(failed_loads=0), after=Metrics(failed_loads=1)),)
    assert check_liveness(history(ended(0, PROMPT), shape=TIERED, steps=steps))


def test_loads_after_eviction_and_after_a_reset_are_distinguished() -> None:
    """A load before any reset brings back evicted tokens; one after a reset brings back what the reset removed."""
    readings = [Metrics(external_hit_tokens=count, failed_loads=count // 64) for count in (0, 32, 32, 64)]
    steps = tuple(record(i, before=readings[i], after=readings[i + 1]) for i in range(3))
    reset = ResetRecord(began=1.5, ended=1.6, success=True)
    facts = tier_facts(history(*(outcome(i, PROMPT) for i in range(3)), steps=steps, resets=(reset,)))
    assert facts[Tiers.LOADED] == 64
    assert (facts[Tiers.LOADED_EVICTED], facts[Tiers.LOADED_RESET]) == (1, 1)
    assert (facts[Tiers.FAILED_LOADS], facts[Tiers.AFTER_FAILURE]) == (1, 1)


def test_only_a_burst_that_hits_and_loads_shows_a_load_beside_a_hit() -> None:
    """A burst with a hit alone, or with a load alone, does not."""
    counts = ((0, 0), (32, 0), (32, 32), (64, 64))
    readings = [Metrics(hit_tokens=hit, external_hit_tokens=loaded) for hit, loaded in counts]
    steps = tuple(record(i, before=readings[i], after=readings[i + 1]) for i in range(3))
    facts = tier_facts(history(*(outcome(i, PROMPT) for i in range(3)), steps=steps))
    assert facts[Tiers.LOADED_BESIDE_HITS] == 1


@pytest.mark.parametrize("strategy", [sent_again_after_gaps(LIMITS), partitions(LIMITS)])
def test_workloads_have_gaps_of_both_kinds_and_later_turns(strategy: Any) -> None:
    """Requests that are inserted do not change which request a turn continues."""

    def has_both(workload: Workload) -> bool:
        names = {s.name for _, _, r in workload.requests() for s in r.prompt.segments}
        return any(isinstance(step, Reset) for step in workload.steps) and "flood" in names

    assert find(strategy, has_both)
    follows = find(strategy, lambda w: any(r.prompt.continues is not None for _, _, r in w.requests()) and has_both(w))
    numbered = {number: request for number, _, request in follows.requests()}
    for number, request in numbered.items():
        earlier = request.prompt.continues
        if earlier is not None:
            assert earlier < number
            assert "flood" not in {segment.name for segment in numbered[earlier].prompt.segments}
    assert all(step.requests for step in follows.steps if isinstance(step, Burst))


def test_a_configuration_without_a_connector_is_refused_before_anything_starts() -> None:
    """It is a usage error; vLLM would report it after half a minute."""
    with pytest.raises(ValueError, match="expected a JSON object with kv_connector"):
        check_arguments(("--kv-transfer-config", '{"kv_role": "kv_both"}'))
    check_arguments(("--kv-transfer-config", json.dumps(USERS)))


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("offload", 256),
        ("simple", 1024),
        ("kept", 10_000),
        *((name, None) for name in TIERS if name.startswith("lmcache")),
        *((name, None) for name in ("offload-small", "files", "simple-lazy", "example", "multi", "failing")),
    ],
)
def test_what_a_tier_keeps_follows_from_its_options(name: str, kept: int | None) -> None:
    """Pages are 1,024 bytes per block, but OffloadingConnector needs 4,096."""
    tier = TIERS[name]
    config = SimpleNamespace(kv_connector=tier.connector, kv_connector_extra_config=tier.options)
    assert tier_blocks(config, block_bytes=1024) == kept


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("simple", {}),
        ("simple", {"cpu_bytes_to_use": 2**20, "cpu_bytes_to_use_per_rank": 4096}),
        ("offload", {**TIERS["offload"].options, "store_threshold": 2}),
    ],
)
def test_nothing_is_known_of_a_tier_with_other_options(name: str, options: dict[str, Any]) -> None:
    """With other options of a user it is unknown what is stored, and how much of it."""
    config = SimpleNamespace(kv_connector=TIERS[name].connector, kv_connector_extra_config=options)
    assert tier_blocks(config, block_bytes=1024) is None


def test_one_of_our_tiers_stores_blocks_before_their_eviction(tmp_path: Path) -> None:
    """A part of several connectors may do so, too."""
    assert [name for name, tier in TIERS.items() if stores_before_eviction(tier.options)] == ["simple-lazy"]
    several = Tier(connector="MultiConnector", parts=(TIERS["offload"], TIERS["simple-lazy"]))
    options = connector_config(several, tmp_path, 0)["kv_connector_extra_config"]
    assert stores_before_eviction(options)
    assert not stores_before_eviction({**options, "connectors": options["connectors"][:1]})
