"""Each requirement of the cache's areas detects a fault in a real vLLM.

The engine is stepped in this process, so that faults of the catalogue can be injected into its code. The suites' own
tests draw, run and judge, and they find nothing on the unmodified engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import pytest
from support.faults import plant
from support.faulty_runs import ANY_HIT, COUNTS, EXAMPLES, LOST, Bench, one_for_each_requirement, open_bench
from support.nightly import with_samples

from coldproof.adapters.registry import CELLS
from coldproof.adapters.spec.cell import Cell
from coldproof.harness.schema.verdict import FailureClass, Verdict
from coldproof.suites import test_cache_salt as salts
from coldproof.suites import test_chat_preludes as chats
from coldproof.suites import test_control as control
from coldproof.suites import test_embeddings as embeddings
from coldproof.suites import test_ground as ground
from coldproof.suites import test_lora_reload as lora
from coldproof.suites import test_memory_pressure as pressure
from coldproof.suites import test_mixed as mixed
from coldproof.suites import test_preemption as preemption
from coldproof.suites import test_response_options as response_options
from coldproof.suites import test_reuse as reuse
from coldproof.suites import test_tiers as tiers
from coldproof.suites import test_twins as twins

pytestmark = pytest.mark.engine
DEFAULT, TIGHT, EMBEDS = CELLS["default"], CELLS["tight"], CELLS["embeds"]
OFFLOAD = CELLS["tier-offload"]
ANY = (*ANY_HIT, FailureClass.NOT_THE_CACHE)  # a fault that an engine without a cache has, too
# Requests may be longer here than the pool is: what the engine refuses to start with, unless it is broken.
OVERCOMMITTED = msgspec.structs.replace(
    TIGHT,
    arguments=("--num-gpu-blocks-override", "17", "--max-model-len", "1024", "--max-num-batched-tokens", "64"),
)

BROKEN_WITH_A_MODEL: list[tuple[Callable[..., None], str, Cell, tuple[FailureClass, ...]]] = [
    (response_options.test_prompt_logprobs, "scored-prompts-read-the-cache", DEFAULT, (FailureClass.API, *ANY_HIT)),
    (response_options.test_several_answers, "answers-write-into-one-block", DEFAULT, ANY_HIT),
    (response_options.test_stop_strings, "cached-tokens-count-as-answered", DEFAULT, (FailureClass.API, *ANY_HIT)),
    (response_options.test_structured_output, "a-grammar-starts-late-on-a-hit", DEFAULT, (FailureClass.API, *ANY_HIT)),
]
# Their workloads are long, or their faults are about keys and counts: the worker that has no model shows them as well,
# in seconds.
BROKEN_WITHOUT_A_MODEL: list[tuple[Callable[..., None], str, Cell, tuple[FailureClass, ...]]] = [
    (chats.test_next_turn_of_a_chat, "decoded-blocks-are-not-published", DEFAULT, LOST),
    (reuse.test_a_prompt_sent_again, "the-last-block-is-dropped", DEFAULT, LOST),
    (reuse.test_a_prompt_sent_again, "hashes-differ-each-time", DEFAULT, LOST),
    (reuse.test_a_prompt_sent_again_after_others, "the-newest-blocks-go-first", DEFAULT, LOST),
    (reuse.test_counts_agree, "hits-are-counted-twice", DEFAULT, COUNTS),
    (control.test_cache_reset, "a-reset-does-nothing", DEFAULT, ANY_HIT),
    (chats.test_prompts_that_share_a_prefix, "half-a-block-is-hashed", DEFAULT, ANY_HIT),
    (chats.test_next_turn_in_token_ids, "the-last-slot-is-published", DEFAULT, ANY_HIT),
    (embeddings.test_embedding_rows_isolate_the_cache, "rows-are-not-hashed", EMBEDS, ANY_HIT),
    (chats.test_chats_that_share_a_prefix, "half-a-block-is-hashed", DEFAULT, ANY_HIT),
    (pressure.test_working_set_larger_than_the_pool, "evicted-blocks-stay-in-the-index", TIGHT, ANY_HIT),
    (pressure.test_many_identical_long_prompts, "admission-counts-hits-as-new-blocks", TIGHT, LOST),
    (
        twins.test_two_implementations_of_one_part,
        "a-preemption-by-priority-forgets-blocks",
        CELLS["tight-priority"],
        (*LOST, FailureClass.ACCOUNTING),
    ),
    (
        pressure.test_many_identical_long_prompts,
        "cached-blocks-do-not-count-as-free",
        TIGHT,
        (FailureClass.HANG, FailureClass.LOST_REUSE),
    ),
    (
        pressure.test_prompt_that_can_never_fit,
        "a-prompt-longer-than-the-pool-is-admitted",
        OVERCOMMITTED,
        (FailureClass.HANG, FailureClass.NOT_THE_CACHE),
    ),
    (
        pressure.test_prompt_that_can_never_fit,
        "long-prompts-are-cut",
        TIGHT,
        (FailureClass.API, FailureClass.NOT_THE_CACHE),
    ),
    (
        pressure.test_every_block_is_freed,
        "aborted-requests-keep-their-blocks",
        TIGHT,
        (*COUNTS, FailureClass.HANG),
    ),
    (preemption.test_preempted_and_resumed, "resumed-requests-count-a-block-too-many", TIGHT, ANY_HIT),
    (
        preemption.test_requests_after_a_preemption,
        "blocks-of-preempted-requests-stay-in-the-index",
        TIGHT,
        ANY_HIT,
    ),
    (control.test_cache_reset, "a-reset-under-load-does-nothing", DEFAULT, ANY_HIT),
    (control.test_aborted_requests, "an-aborted-prefill-is-published", TIGHT, ANY_HIT),
    (mixed.test_everything_at_once, "hashes-lack-the-salt-and-the-adapter", TIGHT, ANY_HIT),
    (embeddings.test_embedding_rows_isolate_the_cache, "half-of-each-row-is-hashed", EMBEDS, ANY_HIT),
    (embeddings.test_embedding_rows_isolate_the_cache, "the-mask-is-not-hashed", EMBEDS, ANY_HIT),
    (embeddings.test_embedding_rows_isolate_the_cache, "a-salt-is-dropped-from-rows", EMBEDS, ANY_HIT),
    (response_options.test_prompt_logprobs, "scores-of-a-cached-prompt-are-shifted", DEFAULT, ANY_HIT),
    # Scores with a common step, as this worker's, were once taken for rounded ones, and no sampled answer was compared.
    (response_options.test_several_answers, "answers-to-a-cached-prompt-share-a-seed", DEFAULT, ANY_HIT),
    (salts.test_salts_isolate_the_cache, "hashes-lack-the-salt-and-the-adapter", DEFAULT, ANY_HIT),
    (lora.test_in_place_reload_from_another_path, "adapters-are-known-by-name", DEFAULT, ANY_HIT),
    (lora.test_unload_and_load_from_another_path, "adapters-are-known-by-name", DEFAULT, ANY_HIT),
    (lora.test_in_place_reload_of_changed_files, "in-place-reloads-keep-the-old-weights", DEFAULT, ANY),
    (
        lora.test_no_sharing_between_adapters_or_with_the_base_model,
        "hashes-lack-the-salt-and-the-adapter",
        DEFAULT,
        ANY_HIT,
    ),
    (lora.test_return_to_an_earlier_adapter, "only-the-first-change-of-a-name-is-noticed", DEFAULT, ANY_HIT),
    (lora.test_churn_beyond_the_adapter_slots, "a-request-is-served-by-its-slots-new-adapter", DEFAULT, ANY),
    (ground.test_alone_and_in_any_batch, "adapters-of-one-step-are-swapped", DEFAULT, ANY),
    (tiers.test_pool_emptied_and_prompts_sent_again, "loads-are-a-block-off", OFFLOAD, ANY_HIT),
    (tiers.test_pool_emptied_and_prompts_sent_again, "loaded-blocks-leave-the-index", OFFLOAD, LOST),
    (tiers.test_preempted_and_resumed_with_a_second_tier, "stores-read-blocks-that-were-handed-on", OFFLOAD, ANY_HIT),
    (tiers.test_identities_across_tiers, "tier-keys-lack-the-salt", OFFLOAD, ANY_HIT),
    (tiers.test_loads_that_fail, "failed-loads-count-as-loaded", CELLS["tier-failing"], ANY_HIT),
    (tiers.test_everything_at_once_with_a_second_tier, "loads-are-a-block-off", OFFLOAD, ANY_HIT),
    (tiers.test_limits_of_a_request, "limits-on-loads-are-ignored", OFFLOAD, (FailureClass.API,)),
    (
        tiers.test_files_of_a_tier_that_are_lost,
        "a-file-that-cannot-be-read-counts-as-read",
        CELLS["tier-files-lost"],
        ANY_HIT,
    ),
    (tiers.test_kv_of_an_equal_engine, "files-of-an-earlier-engine-are-read-in-part", CELLS["tier-example"], ANY_HIT),
]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Yield one run for all faults that need a model."""
    with open_bench(tmp_path_factory.mktemp("broken") / "report") as made:
        yield made


@pytest.fixture(scope="module")
def fast_bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Yield one run for all other faults, with the fingerprint worker."""
    with open_bench(tmp_path_factory.mktemp("fast") / "report", "fingerprint") as made:
        yield made


@pytest.mark.parametrize(
    ("test", "fault", "cell", "classes", "name"),
    one_for_each_requirement(
        (*row, name)
        for name, rows in (("fast_bench", BROKEN_WITHOUT_A_MODEL), ("bench", BROKEN_WITH_A_MODEL))
        for row in rows
    ),
)
def test_an_injected_fault_is_detected(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    test: Callable[..., None],
    fault: str,
    cell: Cell,
    classes: tuple[FailureClass, ...],
    name: str,
) -> None:
    """The requirement is violated with a failure class that fits, and confirmed on a fresh engine with the same
    fault.
    """
    bench: Bench = request.getfixturevalue(name)
    plant(fault, monkeypatch)
    case = bench.violation(test, cell, examples=EXAMPLES)
    assert case.failure_class in classes, case.sentence


@pytest.mark.parametrize(
    ("test", "cell"),
    [
        pytest.param(chats.test_chats_that_share_a_prefix, DEFAULT, id="CHAT-1"),
        pytest.param(control.test_aborted_requests, TIGHT, id="CTRL-2"),
        pytest.param(mixed.test_everything_at_once, TIGHT, id="MIXED-1"),
    ],
)
@pytest.mark.parametrize("name", with_samples(["fast_bench", "bench"], "fast_bench"))
def test_the_unmodified_engine_conforms(
    request: pytest.FixtureRequest, test: Callable[..., None], cell: Cell, name: str
) -> None:
    """There is no false positive without a fault. So few examples may lack evidence."""
    bench: Bench = request.getfixturevalue(name)
    verdict, reason, cases = bench.verdict(test, cell, examples=3)
    assert verdict in (Verdict.CONFORMS, Verdict.NOT_EXERCISED), reason
    assert cases == []
