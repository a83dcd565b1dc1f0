"""The controls of a really broken vLLM lead to the kind of fault that was planted in it, each in a class of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from harness.cell import Cell
from harness.cells import CELLS
from suites import test_cache_salt as salts
from suites import test_chat_preludes as chats
from suites import test_control as control
from suites import test_lora_reload as reload
from suites import test_memory_pressure as pressure
from suites import test_preemption as preemption
from suites import test_reuse as reuse
from suites import test_surface as surface
from tests.planting import plant
from tests.test_every_requirement_can_fail import Bench, opened

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]
DEFAULT, TIGHT, CHUNKS = (CELLS[name] for name in ("default", "tight", "small-chunks"))
KINDS: list[tuple[str, Callable[..., None], Cell, str]] = [
    (
        "adapters-are-known-by-name",
        reload.test_in_place_reload_from_another_path,
        DEFAULT,
        "a cache key that knows adapters by their names",
    ),
    (
        "in-place-reloads-keep-the-old-weights",
        reload.test_in_place_reload_from_another_path,
        DEFAULT,
        "weights or state that outlive their time, not the prefix cache",
    ),
    ("hashes-forget-who-asks", salts.test_salts_keep_apart_what_they_should, DEFAULT, "a cache key without the salt"),
    (
        "salts-are-cut",
        salts.test_salts_keep_apart_what_they_should,
        DEFAULT,
        "a cache key that misses a part of the salt",
    ),
    (
        "half-a-block-is-hashed",
        chats.test_prompts_that_share_a_prelude,
        DEFAULT,
        "a cache key that misses some of the tokens",
    ),
    (
        "a-hits-blocks-change-places",
        reuse.test_a_prompt_sent_again,
        DEFAULT,
        "a block that holds other KV than its key says",
    ),
    (
        "hits-are-counted-twice",
        reuse.test_counts_agree,
        DEFAULT,
        "how hits are found or counted, not what they hold",
    ),
    (
        "an-aborted-prefill-is-published",
        control.test_aborted_requests,
        CHUNKS,
        "what a client that hangs up leaves behind",
    ),
    (
        "evicted-blocks-stay-in-the-index",
        pressure.test_working_set_larger_than_the_pool,
        TIGHT,
        "eviction, or a pool that does not give back what it holds",
    ),
    (
        "a-preemption-keeps-the-computed-count",
        preemption.test_preempted_and_resumed,
        TIGHT,
        "preemption and what follows it",
    ),
    (
        "scores-of-a-cached-prompt-are-shifted",
        surface.test_prompt_logprobs,
        DEFAULT,
        "how more than plain requests are served on a hit",
    ),
]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Without a model: an engine starts in a second, and every control has its own."""
    with opened(tmp_path_factory.mktemp("broken") / "report", "fingerprint", diagnose="new") as made:
        yield made


@pytest.mark.parametrize(("fault", "test", "cell", "kind"), [pytest.param(*row, id=row[0]) for row in KINDS])
def test_the_conclusion_names_the_kind_of_fault(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, fault: str, test: Callable[..., None], cell: Cell, kind: str
) -> None:
    """The same words for the same mechanism, whatever the counterexample was; and every row was run."""
    plant(fault, monkeypatch)
    case = bench.violation(test, cell, examples=40)
    assert case.diagnosis is not None
    assert case.diagnosis.mechanism == kind, case.diagnosis.conclusion
    assert not [row for row in case.diagnosis.controls if row.not_run]
