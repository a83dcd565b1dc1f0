"""The controls of a vLLM with an injected fault lead to the kind of that fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from support.faults import plant
from support.faulty_runs import Bench, open_bench

from coldproof.adapters.registry import CELLS
from coldproof.adapters.spec.cell import Cell
from coldproof.harness.session.proofs import PROOF_SHARE
from coldproof.suites import test_cache_salt as salts
from coldproof.suites import test_chat_preludes as chats
from coldproof.suites import test_control as control
from coldproof.suites import test_lora_reload as reload
from coldproof.suites import test_memory_pressure as pressure
from coldproof.suites import test_preemption as preemption
from coldproof.suites import test_response_options as response_options
from coldproof.suites import test_reuse as reuse

pytestmark = pytest.mark.engine
DEFAULT, TIGHT, CHUNKS = (CELLS[name] for name in ("default", "tight", "small-chunks"))
KINDS: list[tuple[str, Callable[..., None], Cell, str]] = [
    (
        "adapters-are-known-by-name",
        reload.test_in_place_reload_from_another_path,
        DEFAULT,
        "a cache key that identifies adapters by name",
    ),
    (
        "in-place-reloads-keep-the-old-weights",
        reload.test_in_place_reload_from_another_path,
        DEFAULT,
        "stale model weights or state outside of the prefix cache",
    ),
    (
        "hashes-lack-the-salt-and-the-adapter",
        salts.test_salts_isolate_the_cache,
        DEFAULT,
        "a cache key without the adapter, or with another one",  # the first workload has both, and so has the fault
    ),
    (
        "salts-are-cut",
        salts.test_salts_isolate_the_cache,
        DEFAULT,
        "a cache key that omits a part of the salt",
    ),
    (
        "half-a-block-is-hashed",
        chats.test_prompts_that_share_a_prefix,
        DEFAULT,
        "a cache key that omits some of the tokens",
    ),
    (
        "a-hits-blocks-change-places",
        reuse.test_a_prompt_sent_again,
        DEFAULT,
        "a block whose content does not match its key",
    ),
    (
        "hits-are-counted-twice",
        reuse.test_counts_agree,
        DEFAULT,
        "the lookup or count of hits, not the block content",
    ),
    (
        "an-aborted-prefill-is-published",
        control.test_aborted_requests,
        CHUNKS,
        "the state that a client disconnect leaves behind",
    ),
    (
        "evicted-blocks-stay-in-the-index",
        pressure.test_working_set_larger_than_the_pool,
        TIGHT,
        "eviction, or a pool that does not free its blocks",
    ),
    (
        "a-preemption-keeps-the-computed-count",
        preemption.test_preempted_and_resumed,
        TIGHT,
        "preemption, or the resumption after it",
    ),
    (
        "scores-of-a-cached-prompt-are-shifted",
        response_options.test_prompt_logprobs,
        DEFAULT,
        "the handling of response options on a cache hit",
    ),
]


SAMPLES = {"half-a-block-is-hashed", "hits-are-counted-twice"}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Yield a run without a model: an engine starts in a second, and every control has its own."""
    with open_bench(tmp_path_factory.mktemp("broken") / "report", "fingerprint", diagnose="new") as made:
        yield made


@pytest.mark.parametrize(
    ("fault", "test", "cell", "kind"),
    [pytest.param(*row, id=row[0], marks=[] if row[0] in SAMPLES else [pytest.mark.nightly]) for row in KINDS],
)
def test_the_conclusion_names_the_kind_of_fault(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, fault: str, test: Callable[..., None], cell: Cell, kind: str
) -> None:
    """The same mechanism gives the same conclusion for any counterexample, and every control was run."""
    plant(fault, monkeypatch)
    case = bench.violation(test, cell, examples=40)
    assert case.diagnosis is not None
    assert case.diagnosis.mechanism == kind, case.diagnosis.conclusion
    assert not [row for row in case.diagnosis.controls if row.not_run]


def test_a_run_without_time_for_proof_skips_controls(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new cause is still confirmed once on a fresh engine, but has no controls."""
    plant("hashes-lack-the-salt-and-the-adapter", monkeypatch)
    monkeypatch.setattr(bench.run.trials.proofs, "seconds", PROOF_SHARE * bench.options.seconds + 1)
    case = bench.violation(salts.test_salts_isolate_the_cache, DEFAULT, examples=40)
    assert (case.reproduction.fresh_failed, case.reproduction.fresh_tries) == (1, 1)
    assert case.diagnosis is None
